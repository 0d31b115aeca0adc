"""What one stolen edge costs: 20 devices learn digits at one to three edges, merged every round.

``python -m tests.coordinator.test_stolen_edges`` draws the table of docs/robust.md.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from bench.experiments.robust import CLIENTS, edges_of, trainer_of
from fedagent_coordinator.core.effects import Merge, MergePart
from fedagent_coordinator.merged_models import merge_files
from fedagent_node.blobs import BlobStore
from fedagent_protocol.tensors import Manifest, decode_tensors, encode_tensors
from fedagent_task.aggregation import Arrays
from fedagent_task.aggregation.alignment import Floats
from fedagent_task.aggregation.edges import PARTS
from fedagent_task.aggregation.robust import registry
from fedagent_testbed.study import figure

LAST = 3
LIES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "none": lambda move, _: move,
    "reversed": lambda move, _: -1.5 * move,
    "a million times": lambda move, _: -1e6 * move,
    "lazy": lambda move, _: 1e-6 * move,
    "drifts": lambda move, first: move - 0.5 * np.linalg.norm(move) * first,
}


def played(
    world: str, edges: int, lie: str, *, held_out: bool, seed: int, rounds: int, alone: bool = False
) -> tuple[float, float]:
    """Return the accuracy at the end, and the share of rounds that left an honest edge out."""
    trainer = trainer_of("digits", world, "clean", 0.0, seed)
    x, y = trainer._test
    apart = np.arange(len(y)) % 5 == 0

    def judge(tensors: Arrays) -> Floats:
        theta = tensors[""].astype(np.float32)
        losses = trainer.model.losses(theta, x[apart], y[apart].astype(np.int64))
        return np.array([losses[part::PARTS].mean() for part in range(PARTS)], np.float64)

    model, state, told, out = trainer.initial(1), "", list[float](), 0
    held = edges_of(trainer, "clipped-mean", edges)
    place, first = np.arange(CLIENTS) % edges, np.zeros(0)
    rule, manifest = registry.create("clipped-mean"), Manifest.of({"": model[0]})
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        blobs = BlobStore(Path(folder))

        def put(one: Floats) -> str:
            return blobs.put(encode_tensors({"": one.astype(np.float32)}), durable=False)

        for round_ in range(1, rounds + 1):
            start = np.tile(model, (edges, 1))
            (updates,) = trainer.train(start, np.arange(CLIENTS), place, round_)
            held.begin(start)
            held.take([updates])
            moves = (held.models - start).astype(np.float64)
            first = first if first.size else moves[0] / np.linalg.norm(moves[0])
            moves[0] = LIES[lie](moves[0], first)
            parts = [
                MergePart(put(start[0] + move), weight, weight, str(edge))
                for edge, (move, weight) in enumerate(zip(moves, held.learnt.tolist(), strict=True))
            ][alone:]
            usual = float(np.median(np.linalg.norm(updates.deltas, axis=1)))
            merge = Merge(round_, tuple(sorted(parts)), 0, usual, put(start[0]), state)
            found = merge_files(
                blobs, manifest, merge, rule=rule, judge=judge if held_out else None
            )
            out += bool(found.refused.keys() - ({"0"} if lie != "none" else set()))
            state = found.state or state
            if found.digest:
                made = decode_tensors(blobs.get(found.digest), manifest)[""]
                model = made.astype(np.float32)[None]
            told.append(float((trainer.model.predicted(model[0], x[~apart]) == y[~apart]).mean()))
    return float(np.mean(told[-LAST:])), out / rounds


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize(("edges", "world"), [(2, "dirichlet"), (3, "iid")])
def test_held_out_samples_tell_who_lies_also_of_two(edges: int, world: str, lie: str) -> None:
    honest, _ = played(world, edges, "none", held_out=True, seed=1, rounds=20, alone=True)
    found, left_out = played(world, edges, lie, held_out=True, seed=1, rounds=20)
    assert found > honest - 0.03
    assert left_out == 0


def main() -> None:
    """Print points lost against the honest edges alone, five seeds, 30 rounds."""
    for world, edges, held_out in product(("iid", "dirichlet"), (1, 2, 3), (True, False)):
        row = [world, str(edges), "yes" if held_out else "no"]
        others = []
        for lie in LIES:
            lost = []
            for seed in range(5):
                case = partial(played, world, edges, held_out=held_out, seed=seed, rounds=30)
                honest, _ = case("none", alone=edges > 1 and lie != "none")
                found, left_out = case(lie)
                lost.append(100.0 * (honest - found))
                others.append(left_out)
            told = figure(lost)
            row.append(f"{told.mean:.1f} ± {told.ci95:.1f}")
        print(f"| {' | '.join(row)} | {100.0 * float(np.mean(others)):.1f} |", flush=True)


if __name__ == "__main__":
    main()
