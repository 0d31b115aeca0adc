"""Who holds which samples: seeded, disjoint splits of labels among clients.

With `samples_per_client` every client gets this many and the rest is left out; without, a
split covers every sample. All raise `RecipeError` where labels or samples do not suffice.
"""

import numpy as np
import numpy.typing as npt

from fedagent_task.errors import RecipeError

Rows = npt.NDArray[np.int64]
Partition = list[Rows]
"""Rows of a dataset by client."""

_LABELS = 2
"""Labels of a client that has few."""
_TRIES = 200


def iid(
    labels: Rows, clients: int, *, seed: int, samples_per_client: int | None = None
) -> Partition:
    """Deal all samples out at random, in parts that differ by at most one."""
    rng = _checked(labels, clients, seed, samples_per_client)
    order = rng.permutation(len(labels))
    if samples_per_client is not None:
        order = order[: clients * samples_per_client]
    return np.array_split(order, clients)


def few_labels(
    labels: Rows, clients: int, *, seed: int, samples_per_client: int | None = None
) -> Partition:
    """Give every client samples of exactly two labels (COCS section VI), half of each.

    A label's samples are shared equally by its clients; a label gets clients in proportion to its
    samples, so that parts are of similar size.
    """
    rng = _checked(labels, clients, seed, samples_per_client)
    present, counts = np.unique(labels, return_counts=True)
    if not _LABELS <= len(present) <= _LABELS * clients:
        raise RecipeError(
            "world.training.partition",
            f"gives {_LABELS} labels each, for {clients} clients and {len(present)} labels",
            "let every label have a client, and take no more labels than there are",
        )
    sharers = np.ones(len(present), np.int64)
    spare = np.minimum(clients, counts) - sharers
    sharers += _apportion(_LABELS * clients - len(present), counts / counts.sum(), spare)
    shares = [
        np.array_split(rng.permutation(np.flatnonzero(labels == label)), of_label)
        for label, of_label in zip(present, sharers, strict=True)
    ]
    least = min(len(rows) for parts in shares for rows in parts)
    share: int | None = None
    cards = _cards(np.repeat(np.arange(len(present)), sharers), clients, rng)
    if samples_per_client is not None:
        share = samples_per_client // _LABELS
        if not 1 <= share <= least:
            raise RecipeError(
                "world.training.samples_per_client",
                f"asks for {share} samples of each label, the scarcest share has {least}",
                f"ask for {_LABELS} to {least * _LABELS}, or leave it out",
            )
    return [np.concatenate([shares[card].pop(0)[:share] for card in hand]) for hand in cards]


def iid_for(
    labels: Rows,
    clients: int,
    *,
    iid_clients: int,
    seed: int,
    samples_per_client: int | None = None,
) -> Partition:
    """Give the first clients iid samples and all others two labels (GDA section VI)."""
    rng = _checked(labels, clients, seed, samples_per_client)
    if iid_clients >= clients:
        return iid(labels, clients, seed=seed, samples_per_client=samples_per_client)
    each = len(labels) // clients if samples_per_client is None else samples_per_client
    order = rng.permutation(len(labels))
    dealt, rest = order[: each * iid_clients], np.sort(order[each * iid_clients :])
    skewed = few_labels(
        labels[rest],
        clients - iid_clients,
        seed=int(rng.integers(2**62)),
        samples_per_client=samples_per_client,
    )
    even = [dealt[i * each : (i + 1) * each] for i in range(iid_clients)]
    return [*even, *(rest[rows] for rows in skewed)]


def dirichlet(
    labels: Rows, clients: int, *, gamma: float, seed: int, samples_per_client: int | None = None
) -> Partition:
    """Draw each client's mix of labels from Dir(gamma * 1) (RBCS-F section 6).

    Parts are of equal size. Clients are served in a seeded order; one whose label
    has run out takes more of its other labels, in its own proportions.
    """
    rng = _checked(labels, clients, seed, samples_per_client)
    pools = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    left = np.array([len(pool) for pool in pools])
    total = len(labels) if samples_per_client is None else clients * samples_per_client
    sizes = np.diff(np.linspace(0, total, clients + 1).astype(np.int64))
    mixes = rng.dirichlet(np.full(len(pools), gamma), size=clients)
    parts: list[Rows] = [np.empty(0, np.int64)] * clients
    for client in rng.permutation(clients):
        take = _apportion(int(sizes[client]), mixes[client], left)
        ends = left.copy()
        left = left - take
        parts[client] = np.concatenate([p[a:b] for p, a, b in zip(pools, left, ends, strict=True)])
    return parts


def _cards(deck: Rows, clients: int, rng: np.random.Generator) -> Rows:
    """Return int64[clients, 2]: label cards dealt so that no hand has a pair.

    A random deal is fixed by reshuffling bad hands with as many good ones; where
    that does not end, a circular deal of the sorted deck has no pair for certain,
    because no label has more cards than there are clients.
    """
    hands = rng.permutation(deck).reshape(clients, _LABELS)
    for _ in range(_TRIES):
        ordered = np.sort(hands, axis=1)
        bad = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
        if not bad.any():
            return hands
        good = rng.permutation(np.flatnonzero(~bad))[: bad.sum()]
        mixed = np.concatenate((np.flatnonzero(bad), good))
        hands[mixed] = rng.permutation(hands[mixed].ravel()).reshape(-1, _LABELS)
    return deck.reshape(_LABELS, clients).T


def _apportion(
    total: int, share: npt.NDArray[np.float64], most: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Split `total` by shares into whole numbers of at most `most` each.

    What a full place cannot take goes to the others by their shares; places of
    share 0 come last. Raises `RecipeError` if all together cannot take it.
    """
    if total > most.sum():
        raise RecipeError(
            "world.training.samples_per_client",
            f"asks for {total} in all, {most.sum()} are there",
            "ask for fewer",
        )
    taken = np.zeros(len(most), np.int64)
    while (missing := total - int(taken.sum())) > 0:
        open_ = taken < most
        weight = np.where(open_, share, 0.0)
        if weight.sum() <= 0:
            weight = open_.astype(np.float64)
        exact = weight * (missing / weight.sum())
        step = np.minimum(np.floor(exact).astype(np.int64), most - taken)
        if not step.any():
            # Remainders, largest first: ties by index, so that the seed decides.
            places = np.argsort(-exact, kind="stable")[: min(missing, int((weight > 0).sum()))]
            step[places] = 1
        taken += step
    return taken


def _checked(
    labels: Rows, clients: int, seed: int, samples_per_client: int | None
) -> np.random.Generator:
    if samples_per_client is not None and clients * samples_per_client > len(labels):
        raise RecipeError(
            "world.training.samples_per_client",
            f"is {samples_per_client}, for {clients} clients and {len(labels)} samples",
            f"ask for 1 to {len(labels) // clients}",
        )
    return np.random.default_rng(seed)
