"""Devices that were ordered and never delivered in time, in words: why, and what to do."""

from collections import Counter
from collections.abc import Sequence

from .run_report import ReportAgent

SLOW = "raise rounds.deadline_s, or give it less to do (learner.passes, rounds.iterations)"
UNHEARD = ("it never answered", "see that it runs and reaches its edge: fedagent doctor there")
ENDINGS = {
    "missed": ("it took its order, but the round closed first", f"see that it still runs; {SLOW}"),
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
    "declined unavailable": (
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
"""What an outcome means and the hint, by status and the first word of its reason."""

PLAIN = frozenset({"missed unanswered", "missed silent", "declined no_data"})
"""Outcomes whose reason says nothing more."""


def undelivered(agents: Sequence[ReportAgent]) -> list[str]:
    """Return a line for each device none of whose updates came in time."""
    return [_line(agent) for agent in agents if agent.ordered and not agent.in_time]


def _line(agent: ReportAgent) -> str:
    times = "once" if agent.ordered == 1 else f"{agent.ordered} times"
    late = agent.outcomes.get("late", 0)
    done = "never delivered an update" + (" in time" if late else "")
    head = f"{agent.name} was ordered {times} and {done}"
    if not agent.reasons:
        return f"{head}."
    kinds: Counter[str] = Counter()
    for reason, times_so in agent.reasons.items():
        kinds[reason.partition(":")[0]] += times_so
    ((kind, count),) = kinds.most_common(1)
    status = kind.partition(" ")[0]
    why, hint = ENDINGS.get(kind) or ENDINGS.get(status) or (f"it {status}", "its log says more")
    like = {one: n for one, n in agent.reasons.items() if one.partition(":")[0] == kind}
    reason = max(like, key=like.__getitem__).partition(" ")[2]
    detail = f" ({reason})" if reason and kind not in PLAIN else ""
    most = "" if count == agent.ordered else f", {count} of them"
    return f"{head}: {why}{most}{detail}. What to do: {hint}."
