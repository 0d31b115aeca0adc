"""Whether there is anything to decide, what is waited for if not, and who is left out for a while.

A client that cannot train answers within milliseconds. Without a pause it would be chosen
again at once, and use up the rounds of the run in seconds. One that does not even acknowledge
its order is most likely dead: until its edge has noticed (45 s), every round with it would
last until the deadline.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.errors import PolicyError
from fedagent_coordinator.policies.base import OPINIONS, TRUTH, VOLUNTEERS, IntArray
from fedagent_protocol.errors import safe_text
from fedagent_protocol.messages import STARTS_BITS, UNANSWERED, OutcomeStatus

from .effects import Reserve, Settle
from .observation import Observed
from .settings import Settings

DECLINED_BACKOFF_S = 0.25
UNRESPONSIVE_BACKOFF_S = 2.0
MAX_BACKOFF_S = 30.0
CHEAPER_WAIT_S = 120.0
"""How long a run whose budget pays nobody that is heard waits for those that are away."""
EDGES = "edges"
AGENTS = "agents"
DECLINED = "declined"
BUDGET = "budget"
"""The one reason that ends the run instead of waiting."""
TARGET = "target"
"""Why a run ends whose models are as good as wanted; nothing waits for it."""
PRICES = "prices"
RENTS = "rents"
FEATURES = "features"
STATISTICS = "statistics"
"""Devices add up their samples, or none of them has any."""


def needs_unmet(policy: str, missing: Collection[str], reported: Collection[str]) -> PolicyError:
    """Return that a policy reads what is not known in a live run."""
    modes = {OPINIONS: "report", VOLUNTEERS: "peers"}
    uncollected = [need for need in modes if need in missing]
    hint = "choose another policy"
    if TRUTH in missing:
        what = "the outcome of a round before it is played, which only the testbed knows"
    elif uncollected:
        what = f"{uncollected[0]}, which this run does not collect"
        hint = f'set opinions.mode = "{modes[uncollected[0]]}"'
    else:
        known = ", ".join(sorted(reported)) or "no features yet"
        what = f"{', '.join(sorted(missing))}, which no agent reports (agents report: {known})"
    return PolicyError(f"policy {policy!r} needs {what}", hint)


@dataclass(slots=True)
class Readiness:
    """Finds why a round cannot be decided yet; the run was `resumed` at `started_at`."""

    settings: Settings
    needs: frozenset[str]
    resumed: bool
    started_at: float = 0.0
    gathered: bool = False
    _no_feature_since: float | None = None
    insolvent_since: float | None = None  # since nobody that is heard can be paid

    def missing(
        self, observed: Observed, *, edges: int, agents: int, free_micro: int | None, now: float
    ) -> str:
        """Return what is missing in one word, or an empty one when the round may go on.

        ``edges``, ``agents``: too few; ``declined``: those there are have just declined and
        are left out for a while; ``features``: the policy's are not measured yet; ``prices``:
        every agent costs more than an edge's budget; ``budget``: or than what is left of the
        run's. Placed rounds also wait for ``rents``.

        Raises:
            PolicyError: Agents are there and do not report what the policy needs.
        """
        if self._features_missing(observed, now):
            return FEATURES
        for few, found in ((EDGES, edges), (AGENTS, agents)):
            if found < self.wanted(few, now):
                return DECLINED if self.gathered and observed.left_out[DECLINED] else few
        self.gathered = True
        # Unavailable ones may come back, and count for what is left of the run's.
        price: IntArray = observed.view.pair_price
        if free_micro is not None and int(price.min()) > free_micro:
            return BUDGET
        cheapest = int(price[observed.view.eligible].min())
        return PRICES if cheapest > int(observed.view.edge_budget.max()) else ""

    def out_of_means(self, now: float, *, rounds: int, everybody: bool) -> bool:
        """Return whether the run ends, whose budget pays nobody that is heard.

        One that is away may be cheap enough, and one that is dear and heard alone must not end
        the run: least of all before its first round, but where edges are rented.

        Args:
            now: The time.
            rounds: How many are settled.
            everybody: All that the run ever knew are heard, and none of them might fit yet.
        """
        s = self.settings
        if self.insolvent_since is None:
            self.insolvent_since = now
        if not (rounds or s.recipe.placement.rents):
            return False
        gathered = rounds or now - self.started_at >= s.resume_wait_s
        return (everybody and bool(gathered)) or now - self.insolvent_since >= CHEAPER_WAIT_S

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
            raise needs_unmet(self.settings.recipe.policy.name, missing, view.feature_names)
        return True


def longer(seconds: float, first: float, most: float) -> float:
    """Return the pause that follows one of so many seconds, of which there were none at 0."""
    return min(max(2 * seconds, first), most)


class _Pause(NamedTuple):
    """Until when a client is left out; the entry stays until its next valid update."""

    until: float
    seconds: float
    boot: int
    reason: str


@dataclass(slots=True)
class ClientBackoff:
    """Which clients are left out since they declined or were unresponsive, and how long."""

    _by_client: dict[int, _Pause] = field(default_factory=dict)

    def settle(self, plan: Reserve, settled: Settle, now: float) -> None:
        """Take in how a round ended."""
        valid, details = ~settled.feedback.unpaid, settled.details
        if valid.all() and not self._by_client:
            return
        boots = (plan.context_seq >> STARTS_BITS).tolist()
        for row, (client, boot) in enumerate(zip(plan.clients.tolist(), boots, strict=True)):
            why = details.reason[row]
            if valid[row]:
                self._by_client.pop(client, None)
            elif details.status[row] == OutcomeStatus.DECLINED:
                self._lengthen(client, boot, why, now, DECLINED_BACKOFF_S)
            elif why == UNANSWERED:
                self._lengthen(client, boot, why, now, UNRESPONSIVE_BACKOFF_S)

    def away(self, context_seq: npt.NDArray[np.int64], now: float) -> npt.NDArray[np.int64]:
        """Return who is left out now (int64[N]: newest reports); one that restarted is not."""
        for client in [client for client in self._by_client if client < len(context_seq)]:
            if int(context_seq[client]) >> STARTS_BITS > self._by_client[client].boot:
                del self._by_client[client]
        away = [client for client, pause in self._by_client.items() if now < pause.until]
        return np.array(away, dtype=np.int64)

    def reason(self, now: float) -> str:
        """Return why the client that is asked again first is left out, in its own words."""
        left = [pause for pause in self._by_client.values() if now < pause.until]
        return safe_text(min(left).reason) if left else ""

    def _lengthen(self, client: int, boot: int, why: str, now: float, first_s: float) -> None:
        former = self._by_client.get(client)
        seconds = longer(0.0 if former is None else former.seconds, first_s, MAX_BACKOFF_S)
        self._by_client[client] = _Pause(now + seconds, seconds, boot, why)
