"""What one plain round walks through: ``python -m bench.walk`` lists it, ``bench walk`` counts.

One coordinator, one edge and one agent play rounds on the testbed's kernel, in virtual time; no
training, no envelopes. Counted are the named functions of ours that a round enters between two
openings, the files they stand in, and how often the file changes from one function to the next,
in the order in which the round first enters them. The testbed itself is not counted.
"""

import itertools
import statistics
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType

from fedagent_node.effects import Send
from fedagent_protocol.messages import RoundOpen
from fedagent_task.recipe.text import parse_recipe
from fedagent_testbed.world import VirtualFederation

from .rows import ROOT, Row, Rows
from .size import PRODUCT

ROUNDS, FIRST = 9, 4
"""By the first round that counts, everything that happens once has happened."""
DECIDING = (
    "coordinator/fedagent_coordinator/policies/",
    "coordinator/fedagent_coordinator/solvers/",
)
SETS = (f"rounds.count={ROUNDS}", "rounds.deadline_s=5", "rounds.max_wait_s=5")
Function = tuple[str, str]
"""A file below the root, and the qualified name of a function in it."""


def trace() -> list[list[Function]]:
    """Return the functions of each round, in the order in which it first entered them."""
    rounds: list[dict[CodeType, None]] = [{}]
    recipe = parse_recipe((Path(__file__).parent / "wire.toml").read_text(encoding="utf-8"), SETS)

    def spy(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            rounds[-1].setdefault(frame.f_code)

    with tempfile.TemporaryDirectory() as folder:
        world = VirtualFederation(Path(folder), recipe, seed=1, agents=1, chunk_bytes=1 << 16)
        send = world.coordinator.send

        def sends(message: Send) -> bool:
            if isinstance(message.message, RoundOpen):
                rounds.append({})
            return send(message)

        world.coordinator.send = sends  # type: ignore[method-assign,assignment] # it marks the openings
        sys.setprofile(spy)
        try:
            ending = world.run()
        finally:
            sys.setprofile(None)
    assert ending.rounds_done == ROUNDS, ending
    return [list(ours(codes)) for codes in rounds[FIRST:ROUNDS]]


def ours(codes: Iterable[CodeType]) -> Iterable[Function]:
    """Yield the named functions of the product without the testbed."""
    for code in codes:
        file = Path(code.co_filename)
        if file.is_relative_to(ROOT) and code.co_name[0] != "<":
            name = file.relative_to(ROOT).as_posix()
            if name.startswith(PRODUCT) and "fedagent_testbed" not in name:
                yield name, code.co_qualname


def row(name: str, rounds: list[list[Function]]) -> Row:
    """Return medians over the rounds."""
    counts = [
        (
            len(one),
            len({file for file, _ in one}),
            sum(a[0] != b[0] for a, b in itertools.pairwise(one)),
        )
        for one in rounds
    ]
    functions, files, changes = (statistics.median(column) for column in zip(*counts, strict=True))
    return {
        "bench": "walk",
        "of": name,
        "functions": functions,
        "files": files,
        "file_changes": changes,
        "rounds": len(rounds),
    }


def rows() -> Rows:
    rounds = trace()
    yield row("all", rounds)
    fewer = [[one for one in each if not one[0].startswith(DECIDING)] for each in rounds]
    yield row("without policies and solvers", fewer)


if __name__ == "__main__":
    # The functions of the last round, in order.
    for file, name in trace()[-1]:
        print(f"{file}: {name}")
