"""The least change of one quantity that would have selected a device, by solving the round again.

One quantity at a time is moved away from what it was until the device is selected, and the last
stretch is bisected: a change is named that selects it, and one that is slightly smaller does not.
"""

from collections.abc import Callable, Iterable, Iterator

from fedagent_coordinator.policies.base import MAX_MICRO

from .account import Change
from .decided import COMPUTE, RATES, DecidedRound

_DOWN = (0.99, 0.95, 0.9, 0.8, 0.7, 0.5, 0.3, 0.1, 0.01, 0.0)
_UP = (1.01, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1000.0)
_CLOSE = 1e-3
"""Share of a factor to which it is found."""


def nearest_changes(decided: DecidedRound, client: int) -> list[Change]:
    """Return the nearest change of each quantity that has one; none of a client selected."""
    pair = decided.best_pair(client)
    if decided.policy is None or pair is None or decided.chosen_pair(client) is not None:
        return []
    if not decided.view.client_available[client]:
        change = Change(what="availability", before=0.0, to=1.0)
        return [change] if decided.selects(client, change) else []
    return list(_of_quantities(decided, client, pair))


def _of_quantities(decided: DecidedRound, client: int, pair: int) -> Iterator[Change]:
    view = decided.view

    def found(
        tries: Iterable[Change], between: Callable[[Change, Change], Change | None]
    ) -> Iterator[Change]:
        change = _first(decided, client, tries, between)
        if change is not None:
            yield change

    price = int(view.client_price[client])
    yield from found(_amounts("price", price, (int(price * by) for by in _DOWN)), _halved)
    for edge in dict.fromkeys(view.pair_edge[decided.pairs_of(client)].tolist()):
        before = int(view.edge_budget[edge])
        all_prices = before + int(view.pair_price[view.pair_edge == edge].sum())
        steps = _raised(before, price, all_prices)
        yield from found(_amounts("budget", before, steps, decided.edge_id(edge)), _halved)
    free = decided.free_micro
    if free is not None and (view.edge_budget == min(free, decided.cap_micro)).all():
        steps = _raised(free, price, free + int(view.pair_price.sum()))
        yield from found(_amounts("run_budget", free, steps), _halved)
    for what, names in (("rate", RATES), ("compute", (COMPUTE,))):
        for name in names:
            value = float(view.optional(name)[pair])
            if value > 0:
                edge_id = decided.edge_id(int(view.pair_edge[pair]))
                start = Change(what=what, before=value, to=value, edge=edge_id, factor=1.0)  # type: ignore[arg-type] # one of two words
                yield from found((_by(start, factor) for factor in (1.0, *_UP)), _between)
                break


def _first(
    decided: DecidedRound,
    client: int,
    tries: Iterable[Change],
    between: Callable[[Change, Change], Change | None],
) -> Change | None:
    """Return the change nearest to the first of `tries`, which is none, that selects."""
    ahead = iter(tries)
    short = next(ahead)
    for far in ahead:
        if decided.selects(client, far):
            return _bisected(decided, client, (short, far), between)
        short = far
    return None


def _bisected(
    decided: DecidedRound,
    client: int,
    ends: tuple[Change, Change],
    between: Callable[[Change, Change], Change | None],
) -> Change:
    """Return the least change that selects between one that does not and one that does."""
    short, far = ends
    while (middle := between(short, far)) is not None:
        if decided.selects(client, middle):
            far = middle
        else:
            short = middle
    return far


def _raised(before: int, price: int, most: int) -> Iterator[int]:
    """Yield larger and larger amounts; by shares of a price where nothing was there."""
    base = before or price
    for by in _UP:
        if before < (more := max(int(base * by), before + 1)) < most:
            yield more
    yield min(most, MAX_MICRO)


def _amounts(what: str, before: int, steps: Iterable[int], edge: str = "") -> Iterator[Change]:
    for to in (before, *steps):
        yield Change(what=what, before=before, to=to, edge=edge)  # type: ignore[arg-type] # one of its words


def _halved(short: Change, far: Change) -> Change | None:
    """Return the change half way, in whole micro-credits; None where none is between."""
    middle = (int(short.to) + int(far.to)) // 2
    if middle in (int(short.to), int(far.to)):
        return None
    return _to(far, middle)


def _to(change: Change, to: int) -> Change:
    return Change(what=change.what, before=change.before, to=to, edge=change.edge)


def _between(short: Change, far: Change) -> Change | None:
    if far.factor <= short.factor * (1 + _CLOSE):
        return None
    return _by(far, (short.factor * far.factor) ** 0.5)


def _by(start: Change, factor: float) -> Change:
    return Change(
        what=start.what,
        before=start.before,
        to=start.before * factor,
        edge=start.edge,
        factor=factor,
    )
