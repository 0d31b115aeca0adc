"""Devices that were ordered and never delivered in time, in words: why, and what to do."""

from collections.abc import Sequence

from .story import AgentRow

STILL = "it was still working when the round closed"
SLOW = "raise rounds.deadline_s, or give it less to do: learner.passes, rounds.iterations"
UNHEARD = ("it never answered", "see that it runs and reaches its edge: fedagent doctor there")
ENDINGS = {
    "missed": (STILL, SLOW),
    "missed unanswered": UNHEARD,
    "missed silent": UNHEARD,
    "late": ("its update came after the deadline", SLOW),
    "declined no_data": (
        "nothing had arrived on its stream",
        "see that its --stream names what the sensor sends",
    ),
    "declined schema": (
        "its stream does not fit the recipe",
        "compare model.features and data.dtype with its --stream",
    ),
    "declined unwilling": (
        "a rule of the device forbade it",
        "fedagent doctor on the device says which",
    ),
    "declined load": (
        "it had too little memory or time",
        "see its --memory-limit and --load-limit",
    ),
    "rejected": ("its update was refused", "see limits in the recipe, and the edge's log"),
    "gone": ("it had left its edge", "see its link, and that it keeps running"),
}
"""What an outcome means and the mend, by status and the first word of its reason."""


def undelivered(agents: Sequence[AgentRow]) -> list[str]:
    """Return a line for each device none of whose updates came in time."""
    return [_line(agent) for agent in agents if agent.ordered and not agent.in_time]


def _line(agent: AgentRow) -> str:
    times = "once" if agent.ordered == 1 else f"{agent.ordered} times"
    late = agent.outcomes.get("late", 0)
    done = "never delivered an update" + (" in time" if late else "")
    head = f"{agent.name} was ordered {times} and {done}"
    if not agent.reasons:
        return f"{head}."
    ending, count = max(agent.reasons.items(), key=lambda item: item[1])
    status, _, reason = ending.partition(" ")
    code = reason.partition(":")[0]
    known = ENDINGS.get(f"{status} {code}".strip()) or ENDINGS.get(status)
    why, mend = known or (f"it {status}", "its log says more")
    told = f" ({reason})" if reason and known is not UNHEARD else ""
    most = "" if count == agent.ordered else f", {count} of them"
    return f"{head}: {why}{most}{told}. What to do: {mend}."
