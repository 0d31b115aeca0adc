"""What a device's card has beside its row: its context, its trust and its newest orders."""

import math
from pathlib import Path

from msgspec import structs

from fedagent_coordinator.books.read import open_reader
from fedagent_coordinator.picture.devices import DeviceCard
from fedagent_coordinator.picture.records import Context, DeviceDetail
from fedagent_coordinator.policies.base import Bound, RoundView, Selection

ORDERS = 25


def detail(folder: Path, card: DeviceCard) -> DeviceDetail:
    """Read what is known of a device.

    Raises:
        CoordinatorError: The database cannot be read.
    """
    with open_reader(folder) as reader:
        run = reader.run()
        round_ = reader.last_round(run.run_id)
        if card.index is None or not round_:
            return DeviceDetail(card=card, round=round_)
        view, selection = reader.plan(run.run_id, round_)
        trust, gap = reader.judged(run.run_id).get(card.index, (None, None))
        card = structs.replace(card, trust=trust, claim_gap=gap)
        return DeviceDetail(
            card=card,
            round=round_,
            contexts=_contexts(view, selection, card.index or 0, list(reader.edges(run.run_id))),
            orders=tuple(reader.orders_of(run.run_id, card.index or 0)[:ORDERS]),
        )


def _contexts(
    view: RoundView, selection: Selection, client: int, edges: list[str]
) -> tuple[Context, ...]:
    found = []
    for pair in (view.pair_client == client).nonzero()[0].tolist():
        values = view.pair_features[pair].tolist()
        named = zip(view.feature_names, values, strict=True)
        found.append(
            Context(
                edge=edges[int(view.pair_edge[pair])],
                features={name: _known(value) for name, value in named},
                score=_known(float(selection.scores[pair])),
                bound=Bound(int(selection.bound[pair])).name.lower(),
            )
        )
    return tuple(found)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
