"""Orders of one round: who was chosen where, what each edge is sent, what came back."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies.base import Bound, RoundView, Selection
from fedagent_protocol.messages import Assignment, RoundOrder, RoundReport

from .edges import EdgeSession
from .effects import Controls
from .observation import Observed
from .settings import Settings

RESEND_FIRST_S = 1.0
RESEND_LONGEST_S = 8.0


def affordable(view: RoundView, selection: Selection, free_micro: int | None) -> Selection:
    """Return the selection without the pairs that the run's budget cannot pay any more.

    The policy's order decides: a pair that does not fit is left out, and a later,
    cheaper one may still be taken.
    """
    if free_micro is None:
        return selection
    keep: list[bool] = []
    left = free_micro
    for price in view.pair_price[selection.pairs].tolist():
        keep.append(price <= left)
        left -= price if keep[-1] else 0
    if all(keep):
        return selection
    kept = np.asarray(keep, dtype=np.bool_)
    bound = selection.bound.copy()
    bound[selection.pairs[~kept]] = Bound.EDGE_BUDGET
    return replace(selection, pairs=selection.pairs[kept], bound=bound)


@dataclass(slots=True)
class EdgePart:
    """One edge's part in a round that is under way.

    Attributes:
        rows: Positions in the selection of the agents ordered here.
        agents: Their ids, in the same order.
        resend_at: When the order is repeated; None once the edge has reported.
    """

    edge: str
    index: int
    rows: list[int]
    agents: list[str]
    resend_at: float | None
    patience_s: float = 2 * RESEND_FIRST_S
    report: RoundReport | None = None


@dataclass(slots=True)
class OrderedRound:
    """A round between its reservation and its end.

    Attributes:
        want_model: A merge follows, so the reports shall bring the models.
        opened_at: When the edges were first asked for its columns.
        ordered_at: When the orders first went out.
        give_up_at: When an edge that has not reported has failed.
        parts: One per edge with orders, by edge id.
        timing_ms: Durations of the steps so far.
    """

    round: int
    observed: Observed
    selection: Selection
    controls: Controls
    want_model: bool
    opened_at: float
    ordered_at: float
    give_up_at: float
    parts: dict[str, EdgePart]
    timing_ms: dict[str, float] = field(default_factory=dict)

    @property
    def clients(self) -> npt.NDArray[np.int32]:
        """int32[S], the chosen clients."""
        return self.observed.view.pair_client[self.selection.pairs]

    @property
    def context_seq(self) -> npt.NDArray[np.int64]:
        """int64[S], the report each chosen client was evaluated by."""
        return self.observed.client_seq[self.clients]

    @property
    def complete(self) -> bool:
        """Whether every edge has reported."""
        return all(part.report is not None for part in self.parts.values())

    def agents(self, rows: Sequence[int]) -> list[str]:
        """Return the ids of the agents ordered in these rows of the selection."""
        names = {
            row: agent
            for part in self.parts.values()
            for row, agent in zip(part.rows, part.agents, strict=True)
        }
        return [names[row] for row in rows]

    def order(self, part: EdgePart, settings: Settings, now: float) -> RoundOrder:
        """Return an edge's order, with the time that is left."""
        elapsed_ms = int(1000 * max(0.0, now - self.ordered_at))
        max_wait_ms = max(1, settings.max_wait_ms - elapsed_ms)
        view, pairs = self.observed.view, self.selection.pairs[part.rows]
        clients = view.pair_client[pairs]
        assignments = tuple(
            Assignment(
                agent=agent,
                iterations=self.controls.iterations,
                price=price,
                context_seq=context,
            )
            for agent, price, context in zip(
                part.agents,
                view.client_price[clients].tolist(),
                self.observed.client_seq[clients].tolist(),
                strict=True,
            )
        )
        return RoundOrder(
            round=self.round,
            task=settings.task,
            assignments=assignments,
            deadline_ms=min(settings.deadline_ms, max_wait_ms),
            max_wait_ms=max_wait_ms,
            min_updates=settings.min_updates,
            weighting=settings.weighting,
            norm_limit=settings.norm_limit,
            max_samples=settings.max_samples,
            want_model=self.want_model,
            load_limit_ms=settings.load_limit_ms,
        )

    def due_again(self, now: float) -> list[EdgePart]:
        """Return the edges whose order is to be repeated, at growing intervals."""
        due = [
            part
            for part in self.parts.values()
            if part.report is None and part.resend_at is not None and now >= part.resend_at
        ]
        for part in due:
            part.resend_at = now + part.patience_s
            part.patience_s = min(part.patience_s * 2, RESEND_LONGEST_S)
        return due

    def next_due(self) -> float:
        """Return when an order must be repeated or an edge given up."""
        times = [
            part.resend_at
            for part in self.parts.values()
            if part.report is None and part.resend_at is not None
        ]
        return min([self.give_up_at, *times])


def parts_of(
    view: RoundView, selection: Selection, edges: Iterable[EdgeSession], now: float
) -> dict[str, EdgePart]:
    """Return the parts of the edges in a round that these pairs make, by edge id."""
    by_index: Mapping[int, EdgeSession] = {edge.index: edge for edge in edges}
    names: dict[int, dict[int, str]] = {}
    parts: dict[str, EdgePart] = {}
    clients = view.pair_client[selection.pairs].tolist()
    places = view.pair_edge[selection.pairs].tolist()
    for row, (client, place) in enumerate(zip(clients, places, strict=True)):
        session = by_index[place]
        if place not in names:
            names[place] = dict(zip(session.client.tolist(), session.ids, strict=True))
            resend_at = now + RESEND_FIRST_S
            parts[session.id] = EdgePart(session.id, place, [], [], resend_at)
        part = parts[session.id]
        part.rows.append(row)
        part.agents.append(names[place][client])
    return parts
