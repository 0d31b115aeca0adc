"""What `run_local` was given to learn from and to evaluate by, as streams and a dataset."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedagent_cli.errors import UsageError

from . import deal

DIGITS = "digits:part={i}/{n},start=1000"
"""What devices learn from where nobody says."""


@dataclass(frozen=True, slots=True)
class Dealt:
    """A stream for each device, in order.

    Attributes:
        dataset: What the model is evaluated by; None if nobody said.
        largest: Samples of the largest part of an array; 0 where only streams were given.
    """

    streams: list[str]
    dataset: str | None = None
    largest: int = 0


def deal_out(
    data: object,
    test: object,
    *,
    labels: Sequence[str],
    agents: int,
    dirichlet: float | None,
    seed: int,
    folder: Path,
) -> Dealt:
    """Return the streams of what `run_local` takes as `data` and `test`; arrays go to files.

    Raises:
        UsageError: It is nothing that can be dealt.
    """
    share = float(test) if isinstance(test, float | int) else None
    if isinstance(data, tuple):
        whole = deal.pair(*_two(data), labels)
        if share is not None:
            whole, rest = deal.held_out(whole, share, seed=seed)
            test = rest
        parts = deal.split(whole, agents, dirichlet=dirichlet, seed=seed)
        given: Sequence[str | deal.Pair] = parts
    else:
        if share is not None or dirichlet is not None:
            what = "test as a share" if share is not None else "dirichlet"
            raise UsageError(f"{what} needs arrays to deal", "give data=(x, y)")
        given = _one_each(data, agents, labels)
    if isinstance(test, tuple):
        test = str(deal.write(folder, "test", deal.pair(*_two(test), labels)))
    if test is not None and not isinstance(test, str):
        raise UsageError("test is not a pair of arrays", "give test=(x, y), a share or a dataset")
    streams = [
        part if isinstance(part, str) else _filed(folder, i, part)
        for i, part in enumerate(given, 1)
    ]
    sizes = [len(part[1]) for part in given if not isinstance(part, str)]
    return Dealt(streams, test, max(sizes, default=0))


def _one_each(data: object, agents: int, labels: Sequence[str]) -> list[str | deal.Pair]:
    if data is None:
        data = DIGITS
    if isinstance(data, str):
        numbers = range(1, agents + 1)
        return [data.replace("{i}", str(i)).replace("{n}", str(agents)) for i in numbers]
    if not isinstance(data, Sequence) or len(data) != agents:
        found = f"{len(data)} parts" if isinstance(data, Sequence) else type(data).__name__
        raise UsageError(
            f"data is {found} for {agents} agents", "give (x, y), a stream, or a list of one each"
        )
    return [part if isinstance(part, str) else deal.pair(*_two(part), labels) for part in data]


def _two(part: Any) -> tuple[object, object]:
    if not isinstance(part, tuple | list) or len(part) != 2:
        raise UsageError(
            "a device's data is neither a stream nor an (x, y) pair", "give (x, y) for each"
        )
    return part[0], part[1]


def _filed(folder: Path, number: int, part: deal.Pair) -> str:
    return deal.stream_of(deal.write(folder, f"agent-{number}", part), len(part[0]))
