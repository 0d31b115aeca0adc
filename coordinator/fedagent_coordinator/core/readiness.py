"""Whether there is anything to decide, and what is waited for if not."""

from collections.abc import Collection
from dataclasses import dataclass

from fedagent_coordinator.errors import PolicyError
from fedagent_coordinator.policies.base import OPINIONS, TRUTH, VOLUNTEERS, IntArray
from fedagent_node.effects import Emit

from .effects import ShowStatus
from .observation import Observed
from .settings import Settings

FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 1.0
REMIND_S = 30.0
EDGES = "edges"
AGENTS = "agents"
DECLINED = "declined"
BUDGET = "budget"
"""The one reason that ends the run instead of waiting."""
PRICES = "prices"
RENTS = "rents"
FEATURES = "features"
STATISTICS = "statistics"
"""Devices add up their samples, or none of them has any."""


class NeedsUnmetError(PolicyError):
    """Raised when a policy reads what is not known in a live run."""

    def __init__(self, policy: str, missing: Collection[str], reported: Collection[str]) -> None:
        super().__init__(policy, missing, reported)
        self.policy = policy
        self.missing = tuple(sorted(missing))
        self.reported = tuple(sorted(reported))
        modes = {OPINIONS: "report", VOLUNTEERS: "peers"}
        mode = next((mode for need, mode in modes.items() if need in self.missing), "")
        aside = TRUTH in self.missing or not mode
        self.hint = "choose another policy" if aside else f'set opinions.mode = "{mode}"'

    @property
    def sentence(self) -> str:
        """What is wrong, without the hint."""
        if TRUTH in self.missing:
            what = "the outcome of a round before it is played, which only the testbed knows"
        elif asked := [need for need in (OPINIONS, VOLUNTEERS) if need in self.missing]:
            what = f"{asked[0]}, which this run does not collect"
        else:
            reported = ", ".join(self.reported) or "no features yet"
            what = f"{', '.join(self.missing)}, which no agent reports (agents report: {reported})"
        return f"policy {self.policy!r} needs {what}"


@dataclass(slots=True)
class Readiness:
    """Finds why a round cannot be decided yet; the run was `resumed` at `started_at`."""

    settings: Settings
    needs: frozenset[str]
    resumed: bool
    started_at: float = 0.0
    gathered: bool = False
    _no_feature_since: float | None = None
    _insolvent_since: float | None = None

    def missing(
        self, observed: Observed, *, edges: int, agents: int, free_micro: int | None, now: float
    ) -> str:
        """Return what is missing in one word, or an empty one when the round may go on.

        ``edges``, ``agents``: too few; ``declined``: those there are have just declined and
        are left out for a while; ``features``: the policy's are not measured yet; ``prices``:
        every agent costs more than an edge's budget; ``budget``: or than what is left of the
        run's. Placed rounds also wait for ``rents``.

        Raises:
            NeedsUnmetError: Agents are there and do not report what the policy needs.
        """
        if self._features_missing(observed, now):
            return FEATURES
        few = self._too_few(edges, agents, now)
        if few:
            return DECLINED if self.gathered and observed.left_out[DECLINED] else few
        self.gathered = True
        return _unpayable(observed, free_micro)

    def insolvent(self, now: float, *, sure: bool) -> bool:
        """Return whether a placed run ends, whose budget pays no edge that is known.

        An edge that is away, or of which too little is known, may be cheap enough. It is
        waited for as long as a resumed run waits, once from the start of this process and
        again from the moment when the budget sufficed for none any more. `sure` is that every
        edge of the run is heard, and none of them might fit yet.
        """
        insolvent_s = self.insolvent_s(now)
        return (now - self.started_at if sure else insolvent_s) >= self.settings.resume_wait_s

    def insolvent_s(self, now: float) -> float:
        """Return for how long the budget has paid nobody who was there."""
        if self._insolvent_since is None:
            self._insolvent_since = now
        return now - self._insolvent_since

    def solvent(self) -> None:
        """Note that an agent could be paid, or that none is there to be asked."""
        self._insolvent_since = None

    def wanted(self, reason: str, now: float) -> int:
        """Return how many of what a round waits for there must be; 0 where it is no number."""
        if reason not in {EDGES, AGENTS}:
            return 0
        s = self.settings
        hurry = self.resumed and now - self.started_at >= s.resume_wait_s
        if self.gathered or hurry:
            return 1
        return s.wait_edges if reason == EDGES else s.wait_agents

    def _features_missing(self, observed: Observed, now: float) -> bool:
        view = observed.view
        missing = self.needs.difference(view.feature_names)
        rows = len(view.pair_client) + observed.left_out["no_feature"]
        if not rows or (not missing and len(view.pair_client)):
            self._no_feature_since = None
            return False
        if self._no_feature_since is None:
            self._no_feature_since = now
        # Once there were rounds, others than those who are heard now have reported it.
        new = not (self.gathered or self.resumed)
        if missing and new and now - self._no_feature_since >= self.settings.needs_wait_s:
            raise NeedsUnmetError(self.settings.recipe.policy.name, missing, view.feature_names)
        return True

    def _too_few(self, edges: int, agents: int, now: float) -> str:
        if edges < self.wanted(EDGES, now):
            return EDGES
        return AGENTS if agents < self.wanted(AGENTS, now) else ""


def _unpayable(observed: Observed, free_micro: int | None) -> str:
    """Return which budget pays no agent; unavailable ones may come back and count."""
    view = observed.view
    price: IntArray = view.pair_price
    if free_micro is not None and int(price.min()) > free_micro:
        return BUDGET
    cheapest = int(price[view.eligible].min())
    return PRICES if cheapest > int(view.edge_budget.max()) else ""


@dataclass(slots=True)
class Waiting:
    """What is waited for: pauses that grow, and events that do not repeat themselves."""

    until: float = 0.0
    _reason: str = ""
    _found: int = 0
    _pause_s: float = FIRST_PAUSE_S
    _logged_at: float = 0.0

    def wait(
        self, reason: str, now: float, *, edges: int, agents: int, wanted: int = 0, detail: str = ""
    ) -> tuple[Emit, ShowStatus] | None:
        """Pause; return what to say when the reason is new or changes, and again after a while."""
        new = reason != self._reason
        found = {EDGES: edges, AGENTS: agents}.get(reason, 0)
        changed = new or found != self._found
        self._pause_s = FIRST_PAUSE_S if new else min(self._pause_s * 1.5, MAX_PAUSE_S)
        self._reason, self._found = reason, found
        self.until = now + self._pause_s
        if not changed and now - self._logged_at < REMIND_S:
            return None
        self._logged_at = now
        fields: dict[str, object] = {"reason": reason, "edges": edges, "agents": agents}
        fields |= {"wanted": wanted} if wanted else {}
        fields |= {"detail": detail} if detail else {}
        status = ShowStatus(waiting=reason, detail=detail, found=found, wanted=wanted)
        return Emit("waiting", fields), status

    def over(self) -> None:
        """Note that there was something to decide."""
        self._reason = ""
        self._pause_s = FIRST_PAUSE_S
