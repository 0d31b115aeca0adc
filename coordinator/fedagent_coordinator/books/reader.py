"""What the store knows of rounds, policies and the ledger; what is quickly read is in `queries`."""

import math
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from fedagent_coordinator.core.decision import CLAIMS, TRUST
from fedagent_coordinator.core.settings import Progress
from fedagent_coordinator.core.trust import ClaimGaps, Trust
from fedagent_coordinator.errors import (
    StateError,
    StoreDamagedError,
    UnknownRoundError,
)
from fedagent_coordinator.policies.base import Feedback, IntArray, RoundView, Selection
from fedagent_coordinator.policies.state import taken
from fedagent_protocol.signed import WorkClaim

from .audit import Ledger
from .evaluations import EvaluationQueries
from .learning import (
    Logged,
    Restorable,
    free_before,
    logged,
    refuse_pruned,
    restore,
    saw,
    settled,
)
from .queries import Queries, open_books
from .records import unpack_arrays


class Reader(Queries):
    """Queries that give back what policies saw, decided and learnt, and check the ledger."""

    def __init__(
        self, connection: sqlite3.Connection, folder: Path, *, since: int | None = None
    ) -> None:
        super().__init__(connection, folder, since=since)
        self.evaluations = EvaluationQueries(connection)
        self.ledger = Ledger(connection, folder)

    def progress(self, run_id: str) -> Progress:
        """Return where a run stands, as the round engine starts from it."""
        model = self.models.last(run_id)
        return Progress(
            next_round=self.last_round(run_id) + 1,
            rounds_done=self.rounds_done(run_id),
            spent_micro=self.balance(run_id).settled_micro,
            model=model.digest if model else "",
            model_round=model.round if model else 0,
            model_size=model.size_bytes if model else 0,
            state=self.models.state(run_id),
        )

    def plan(self, run_id: str, round_: int) -> tuple[RoundView, Selection]:
        """Return what the policy saw and decided, for "why".

        Raises:
            UnknownRoundError: There is no such round, or no more.
        """
        refuse_pruned(self._db, run_id, round_)
        row = self._db.execute(
            "SELECT view, selection FROM rounds WHERE run_id = ? AND round = ?", (run_id, round_)
        ).fetchone()
        if row is None:
            raise UnknownRoundError(run_id, round_)
        return saw(row)

    def free_before(self, run_id: str, round_: int) -> int | None:
        """Return what the run could pay to the clients of a round; None for no limit."""
        if self._value("SELECT unlimited FROM runs WHERE run_id = ?", run_id):
            return None
        rent = self._value(
            "SELECT rent_micro FROM rounds WHERE run_id = ? AND round = ?", run_id, round_
        )
        return free_before(self._db, run_id, round_) - int(rent or 0)

    def restore(self, run_id: str, policies: Restorable, *, before: int) -> None:
        """Give policies what they knew when a round was decided; see `learning.restore`."""
        restore(self._db, run_id, policies, before=before)

    def client_starts(self, run_id: str) -> IntArray | None:
        """Return how often clients had started as the last round saw them; None if unknown."""
        last = self.last_round(run_id)
        return self.plan(run_id, last)[0].client_starts if last else None

    def recent_work(self, run_id: str, since: int) -> frozenset[tuple[str, int]]:
        """Return agent and round of all work that was paid in the rounds from `since` on."""
        claims = self._db.execute(
            "SELECT claim FROM orders WHERE run_id = ? AND round >= ? AND claim IS NOT NULL",
            (run_id, since),
        )
        works = [WorkClaim.read(claim) for (claim,) in claims]
        return frozenset((work.agent, work.made_in or work.round) for work in works)

    def learnt(self, run_id: str) -> Iterator[Feedback]:
        """Yield what the policy learnt of each settled round that is not pruned, in order."""
        return (
            feedback for feedback, _ in settled(self._db, run_id, since=self.closed_until(run_id))
        )

    def logged(self, run_id: str) -> Iterator[Logged]:
        """Yield every round that has ended as `fedagent replay` needs it, in order.

        Raises:
            UnknownRoundError: What the first of them saw is gone.
        """
        return logged(self._db, run_id)

    def claim_gaps(self, run_id: str) -> dict[int, float]:
        """Return what each client's updates took over what it claimed; by index, where known.

        Of a snapshot that is damaged nothing is known.
        """
        gaps = ClaimGaps()
        if not self._caught_up(run_id, gaps, CLAIMS):
            return {}
        return {n: gap for n, gap in enumerate(gaps.of(0).tolist()) if math.isfinite(gap)}

    def trust(self, run_id: str) -> dict[int, float]:
        """Return how far each client is trusted, by index; likewise."""
        trust, gaps = Trust(), ClaimGaps()
        if not (self._caught_up(run_id, trust, TRUST) and self._caught_up(run_id, gaps, CLAIMS)):
            return {}
        return dict(enumerate(trust.of(0, gaps.of(0)).tolist()))

    def _caught_up(self, run_id: str, part: ClaimGaps | Trust, prefix: str) -> bool:
        """Let a part learn what it knew at the last snapshot, and the rounds since."""
        since = 0
        row = self._db.execute(
            "SELECT round, state FROM snapshots WHERE run_id = ? ORDER BY round DESC LIMIT 1",
            (run_id,),
        ).fetchone()
        try:
            if row is not None and (kept := taken(unpack_arrays(row["state"]), prefix)):
                part.restore(kept)
                since = row["round"]
            for feedback, _ in settled(self._db, run_id, since=since):
                part.learn(feedback)
        except (UnknownRoundError, StoreDamagedError, StateError):
            return False
        return True


def open_reader(folder: Path) -> AbstractContextManager[Reader]:
    """Read all of the database of a data directory; see `open_books`."""
    return open_books(folder, Reader)
