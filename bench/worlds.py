"""Policies x worlds, kept run by run: the matrix of `docs/experiments.md` and its figure.

    python -m bench.worlds --seeds 3 --rounds 300        # all worlds
    python -m bench.worlds --world dying --policy adaptive --again    # after a change of it
    python -m bench.worlds --told --seeds 3 --rounds 300 --plots docs/images    # play nothing

Every run is written to a file as soon as it is over, one line of JSON each, and a run that the
file holds is not made again: stop and go on as you like. Runs of other rounds are kept apart.
Needs FEDAGENT_DATA for the recorded links. `fedagent testbed compare all` is the same
at once, without the file.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedagent_cli.testbed.worlds import write_matrix
from fedagent_testbed.study import Matrix, load_recipe, play, world_names
from fedagent_testbed.study.comparison import COVERAGE
from fedagent_testbed.study.matrix import POLICIES, REFERENCE, Outcome, Played
from fedagent_testbed.study.selection import fed

from .rows import Row, show

IMAGES = Path(__file__).parents[1] / "docs" / "images"
RUNS = IMAGES / "worlds-runs.jsonl"
Key = tuple[str, str, int, int]
"""World, policy, rounds, seed."""


def runs_of(file: Path) -> dict[Key, Row]:
    """Return the runs that a file holds; of several of one key the last."""
    if not file.exists():
        return {}
    lines = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    return {(one["world"], one["policy"], one["rounds"], one["seed"]): one for one in lines}


def measure(world: str, policy: str, rounds: int, seed: int) -> Row:
    """Play one run."""
    recipe = load_recipe(world, [f"rounds.count={rounds}"])
    outcome = Outcome.of((play(recipe, policy, seed),), recipe.world.utility)
    return {
        "world": world,
        "policy": policy,
        "rounds": rounds,
        "seed": seed,
        "utility": round(outcome.utility[0], 6),
        **{key: outcome.coverage[key][0] for key in COVERAGE},
    }


def missing(
    worlds: Sequence[str], policies: Sequence[str], rounds: int, seeds: int, known: set[Key]
) -> Iterator[Key]:
    """Yield the runs that are wanted, fed and not known."""
    for world in worlds:
        able, _ = fed(load_recipe(world), policies)
        for policy in [*able, REFERENCE]:
            for seed in range(seeds):
                if (key := (world, policy, rounds, seed)) not in known:
                    yield key


def matrix_of(runs: dict[Key, Row], rounds: int, seeds: int) -> Matrix:
    """Return the matrix of the runs of so many rounds that have all seeds."""
    played = {}
    for world in world_names():
        found: dict[str, Outcome] = {}
        for policy in (*POLICIES, REFERENCE):
            rows = [runs.get((world, policy, rounds, seed)) for seed in range(seeds)]
            whole = [row for row in rows if row is not None]
            if len(whole) == seeds:
                found[policy] = Outcome(
                    tuple(float(str(row["utility"])) for row in whole),
                    {key: tuple(_number(row[key]) for row in whole) for key in COVERAGE},
                )
        if set(found) - {REFERENCE}:
            about = load_recipe(world).world.about
            played[world] = Played(about, rounds, found)
    return Matrix(played)


def _number(value: object) -> float | None:
    return None if value is None else float(str(value))


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows, heads first, as a table."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "| " + " | ".join("---" for _ in rows[0]) + " |", *lines[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--world", action="append", choices=world_names())
    parser.add_argument("--policy", action="append")
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--again", action="store_true", help="play them, known or not")
    parser.add_argument("--told", action="store_true", help="show what is known")
    parser.add_argument("--plots", type=Path, help="a folder for worlds.svg")
    chosen = parser.parse_args()
    known = runs_of(chosen.runs)
    if not chosen.told:
        wanted = missing(
            chosen.world or world_names(),
            chosen.policy or POLICIES,
            chosen.rounds,
            chosen.seeds,
            set() if chosen.again else set(known),
        )
        for key in wanted:
            row = measure(*key)
            with chosen.runs.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            show([row])
        return
    matrix = matrix_of(known, chosen.rounds, chosen.seeds)
    shown = set(chosen.policy or matrix.policies)
    for rows in (matrix.rows(), matrix.coverage_rows()):
        keep = [
            k
            for k, name in enumerate(rows[0])
            if k == 0 or name in shown or name.startswith("best")
        ]
        print(markdown([[row[k] for k in keep] for row in rows]) + "\n")
    for line in matrix.notes():
        print(line)
    if chosen.plots:
        write_matrix(matrix, chosen.plots / "worlds.svg")


if __name__ == "__main__":
    main()
