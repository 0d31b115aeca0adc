"""Whether there is anything to decide, and how patiently to ask again if not."""

from dataclasses import dataclass

from fedagent_coordinator.policies.base import IntArray

from .effects import Effect, Event, Value
from .errors import NeedsUnmetError
from .observe import Observed
from .settings import Settings

PAUSE_FIRST_S = 0.1
PAUSE_LONGEST_S = 1.0
REMIND_S = 30.0
EDGES = "edges"
AGENTS = "agents"
DECLINED = "declined"
BUDGET = "budget"
"""The one reason that ends the run instead of waiting."""
PRICES = "prices"
RENTS = "rents"


@dataclass(slots=True)
class Readiness:
    """Says why a round cannot be decided yet.

    Attributes:
        started_at: When this process began with the run.
        resumed: Rounds were settled before.
        gathered: Enough edges and agents were there once.
    """

    settings: Settings
    needs: frozenset[str]
    resumed: bool
    started_at: float = 0.0
    gathered: bool = False
    _no_feature_since: float | None = None
    _broke_since: float | None = None

    def closed_by(
        self, observed: Observed, *, edges: int, agents: int, free_micro: int | None, now: float
    ) -> str:
        """Return what is missing in one word, or an empty one when the round may go on.

        ``edges``, ``agents``: too few; ``declined``: those there are have declined a
        moment ago and are left alone for a while; ``features``: the policy's are not measured
        yet; ``prices``: nobody is within an edge's budget; ``budget``: nobody is
        within what is left of the run's. Placed rounds also wait for ``rents``.

        Raises:
            NeedsUnmetError: Agents are there and do not report what the policy needs.
        """
        if self._features_missing(observed, now):
            return "features"
        few = self._too_few(edges, agents, now)
        if few:
            return DECLINED if self.gathered and observed.left_out[DECLINED] else few
        self.gathered = True
        return _unpayable(observed, free_micro)

    def broke(self, now: float, *, sure: bool) -> bool:
        """Return whether a placed run ends, whose budget pays no edge that is known.

        An edge that is away, or of which too little is known, may be cheap enough. It is
        waited for as long as a resumed run waits, once from the start of this process and
        again from the moment when nobody could be paid any more.

        Args:
            now: The time.
            sure: Every edge of the run is heard, and none of them might fit yet.
        """
        if self._broke_since is None:
            self._broke_since = now
        patience_s = self.settings.resume_wait_s
        since = self.started_at if sure else self._broke_since
        return now - since >= patience_s

    def solvent(self) -> None:
        """Note that somebody could be paid, or that nobody is there to ask."""
        self._broke_since = None

    def _features_missing(self, observed: Observed, now: float) -> bool:
        view = observed.view
        missing = self.needs.difference(view.feature_names)
        rows = len(view.pair_client) + observed.left_out["no_feature"]
        if not rows or (not missing and len(view.pair_client)):
            self._no_feature_since = None
            return False
        if self._no_feature_since is None:
            self._no_feature_since = now
        if missing and now - self._no_feature_since >= self.settings.needs_wait_s:
            raise NeedsUnmetError(self.settings.policy, missing, view.feature_names)
        return True

    def _too_few(self, edges: int, agents: int, now: float) -> str:
        if edges < self.wanted(EDGES, now):
            return EDGES
        return AGENTS if agents < self.wanted(AGENTS, now) else ""

    def wanted(self, reason: str, now: float) -> int:
        """Return how many of what a round waits for there must be; 0 where it is no number."""
        if reason not in {EDGES, AGENTS}:
            return 0
        s = self.settings
        hurry = self.resumed and now - self.started_at >= s.resume_wait_s
        if self.gathered or hurry:
            return 1
        return s.wait_edges if reason == EDGES else s.wait_agents


def _unpayable(observed: Observed, free_micro: int | None) -> str:
    """Return which budget cannot pay anybody; unavailable agents may come back and count."""
    view = observed.view
    price: IntArray = view.pair_price
    if free_micro is not None and int(price.min()) > free_micro:
        return BUDGET
    cheapest = int(price[view.eligible].min())
    return PRICES if cheapest > int(view.edge_budget.max()) else ""


@dataclass(slots=True)
class Patience:
    """When to ask again while nothing can be decided, and what to say meanwhile.

    Attributes:
        open_at: When to ask again; None for only when somebody comes.
        not_before: The schedule: when the next round may begin, whoever comes earlier.
    """

    reason: str = ""
    open_at: float | None = None
    not_before: float = 0.0
    _found: int = 0
    _pause_s: float = PAUSE_FIRST_S
    _said_at: float = 0.0

    def wait(
        self,
        reason: str,
        now: float,
        *,
        edges: int,
        agents: int,
        wanted: int = 0,
        detail: str = "",
    ) -> list[Effect]:
        """Pause, longer each time; say why when it is new or changes, and after a while."""
        new = reason != self.reason
        found = {EDGES: edges, AGENTS: agents}.get(reason, 0)
        changed = new or found != self._found
        self._pause_s = PAUSE_FIRST_S if new else min(self._pause_s * 1.5, PAUSE_LONGEST_S)
        self.reason, self._found = reason, found
        self.open_at = now + self._pause_s
        if not changed and now - self._said_at < REMIND_S:
            return []
        self._said_at = now
        said: dict[str, Value] = {"reason": reason, "edges": edges, "agents": agents}
        if wanted:
            said |= {"wanted": wanted}
        return [Event("waiting", {**said, "detail": detail} if detail else said)]

    @property
    def due(self) -> float | None:
        """Return when to ask again, not before the schedule; None as `open_at`."""
        return None if self.open_at is None else max(self.open_at, self.not_before)

    def until(self, when: float) -> None:
        """Pause once; the round before has said why."""
        self.open_at = when

    def hurry(self, now: float) -> None:
        """Ask at once: somebody came."""
        self.open_at = now

    def sleep(self) -> None:
        """Ask only when somebody comes."""
        self.open_at = None

    def over(self) -> None:
        """Note that there was something to decide."""
        self.reason = ""
        self._pause_s = PAUSE_FIRST_S
