"""Policies over client sets on the recipe `gda-mnist` with the bundled digits.

The tables of `docs/policies/quick-init-ucb.md` and `bp-ucb.md`: 40 samples a client, 5 seeds,
200 slots of 3 rounds or 100 slots of 15. No data needed.

    python -m bench.papers --row gda-digits
"""

from collections.abc import Iterator

import numpy as np

from fedagent_testbed.study import compare, figure, load_recipe

SETS = (
    "world.training.dataset=digits",
    "world.training.samples_per_client=40",
    "world.training.batch=20",
    "world.training.rate=0.002",
)
LENGTHS = ((3, 200, 20), (15, 100, 10))
"""Rounds of a slot, slots, and the last slots whose accuracy counts."""

POLICIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("random", ()),
    ("fixed", ()),
    ("round-robin", ()),
    ("quick-init-ucb-paper", ()),
    ("quick-init-ucb", ("mu=0.3",)),
    ("quick-init-ucb", ("mu=0.01",)),
    ("bp-ucb", ("mu=0.01", "cold_start=false")),
)
EXPLORING: tuple[tuple[str, tuple[str, ...]], ...] = tuple(
    ("bp-ucb", (f"mu={mu}", "cold_start=false")) for mu in (0.1, 0.3, 1.0)
)


def gda_digits(seeds: int = 5) -> Iterator[dict[str, object]]:
    """Yield the accuracy in the last slots, by policy and length of a slot."""
    for rounds, slots, last in LENGTHS:
        tried = (*POLICIES, *EXPLORING) if rounds == LENGTHS[0][0] else POLICIES
        for name, params in tried:
            sets = (
                *SETS,
                f"rounds.count={rounds * slots}",
                f"world.training.slot_rounds={rounds}",
                f"world.training.evaluate_every={rounds}",
                *(f"policies.{name}.{param}" for param in params),
            )
            runs = compare(load_recipe("gda-mnist", sets), [name], seeds=seeds, jobs=2).histories
            accuracy = [
                float(np.nanmean(run["accuracy"][rounds - 1 :: rounds][-last:]))
                for run in runs[name]
            ]
            yield {
                "bench": "gda-digits",
                "policy": " ".join((name, *params)),
                "slot_rounds": rounds,
                "slots": slots,
                "seeds": seeds,
                "clients_that_trained": [int((run.counts > 0).sum()) for run in runs[name]],
                "accuracy": figure(accuracy).record(),
            }
