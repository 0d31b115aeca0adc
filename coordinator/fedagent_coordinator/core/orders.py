"""Orders of one round: who was chosen where, what each edge is told, what came back."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies.base import Bound, RoundView, Selection
from fedagent_protocol.messages import Assignment, RoundOrder

from .controls import Controls
from .edges import EdgeSession
from .observe import Observed
from .outcomes import EdgePart
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
class OrderedRound:
    """A round between its reservation and its end.

    Attributes:
        controls: Iterations, and the edge that is rented.
        want_model: A merge follows, so the reports shall bring the models.
        ordered_at: When the orders first went out.
        give_up_at: When an edge that has not reported has failed.
        parts: One per edge with orders, by edge id.
    """

    round: int
    observed: Observed
    selection: Selection
    controls: Controls
    want_model: bool
    ordered_at: float
    give_up_at: float
    parts: dict[str, EdgePart]

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

    def order(self, part: EdgePart, settings: Settings, now: float, seq: int) -> RoundOrder:
        """Return what an edge is told; said again, with the time that is left."""
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
            run=settings.run,
            round=self.round,
            seq=seq,
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
        """Return the edges to be told again, ever more patiently."""
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


def plan_round(
    observed: Observed,
    selection: Selection,
    controls: Controls,
    edges: Iterable[EdgeSession],
    *,
    now: float,
    settings: Settings,
    want_model: bool,
) -> OrderedRound:
    """Return the round that these pairs make."""
    view = observed.view
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
            parts[session.id] = EdgePart(session.id, place, [], [], resend_at, RESEND_FIRST_S * 2)
        part = parts[session.id]
        part.rows.append(row)
        part.agents.append(names[place][client])
    give_up_at = now + settings.max_wait_ms / 1000.0 + settings.grace_s
    return OrderedRound(
        round=view.round,
        observed=observed,
        selection=selection,
        controls=controls,
        want_model=want_model,
        ordered_at=now,
        give_up_at=give_up_at,
        parts=parts,
    )
