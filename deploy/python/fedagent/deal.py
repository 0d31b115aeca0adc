"""Arrays dealt over devices: each gets a file of its own, and a stream that reads it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedagent_cli.errors import UsageError
from fedagent_task.readers import load
from fedagent_testbed.learning.partition import dirichlet as by_dirichlet
from fedagent_testbed.learning.partition import iid

Array = npt.NDArray[Any]
Pair = tuple[Array, Array]
DIGITS = "digits:part={i}/{n},start=1000"
"""What devices learn from where nobody says."""
MAX_SAMPLES = 10**6
"""What a stream may have at once."""
BUFFER = 4096
"""Most samples that a stream keeps between two takes, unless it is said."""


@dataclass(frozen=True, slots=True)
class Dealt:
    """A stream for each device, in order."""

    streams: list[str]
    dataset: str | None  # what the model is evaluated by; None if nobody said
    largest: int  # samples of the largest part of an array; 0 where only streams were given


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
    given: Sequence[str | Pair]
    if isinstance(data, tuple):
        whole = pair(data, labels)
        if share is not None:
            whole, test = held_out(whole, share, seed=seed)
        given = split(whole, agents, dirichlet=dirichlet, seed=seed)
    elif share is not None or dirichlet is not None:
        what = "dirichlet" if share is None else "test as a share"
        raise UsageError(f"{what} needs arrays to deal", "give data=(x, y)")
    else:
        given = _one_each(data, agents, labels)
    if isinstance(test, tuple):
        test = str(write(folder, "test", pair(test, labels)))
    if test is not None and not isinstance(test, str):
        raise UsageError("test is not a pair of arrays", "give test=(x, y), a share or a dataset")
    streams, largest = [], 0
    for number, part in enumerate(given, 1):
        if isinstance(part, str):
            streams.append(part)
            continue
        streams.append(stream_of(write(folder, f"agent-{number}", part), len(part[0])))
        largest = max(largest, len(part[0]))
    return Dealt(streams, test, largest)


def _one_each(data: object, agents: int, labels: Sequence[str]) -> list[str | Pair]:
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
    return [part if isinstance(part, str) else pair(part, labels) for part in data]


def pair(given: Any, labels: Sequence[str] = ()) -> Pair:
    """Return rows [n, features] and labels [n] of (x, y): arrays, tensors or lists.

    Args:
        given: x are samples [n, ...], flattened to rows; several inputs as a tuple, one behind the
            other. y are classes as numbers or by their names, or numbers; None where there is no
            target.
        labels: The names of the classes.

    Raises:
        UsageError: They are no pair, no numbers, or not of one length.
    """
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise UsageError(
            "a device's data is neither a stream nor an (x, y) pair", "give (x, y) for each"
        )
    whole, y = rows_of(given[0]), given[1]
    target = np.zeros(len(whole), np.int64) if y is None else np.asarray(y)
    if target.dtype.kind in "US":
        target = _numbered(target, labels)
    target = target.reshape(-1) if target.shape[1:] == (1,) else target
    if target.shape != (len(whole),) or target.dtype.kind not in "fiub" or not len(whole):
        what = f"x has {len(whole)} samples, y is {target.dtype}{list(target.shape)}"
        raise UsageError(f"the labels do not fit: {what}", "give one number for each sample")
    return whole, target


def rows_of(x: object) -> Array:
    """Return samples as rows [n, features]; `x` and errors as of `pair`."""
    parts = [np.asarray(one) for one in (x if isinstance(x, tuple) else (x,))]
    if any(one.ndim < 1 or one.dtype.kind not in "fiub" for one in parts):
        raise UsageError("the samples are not an array of numbers", "give x as numbers [n, ...]")
    rows = [one.reshape(len(one), math.prod(one.shape[1:])) for one in parts]
    if len({len(one) for one in rows}) != 1:
        raise UsageError("the inputs have different numbers of samples", "give one row for each")
    return np.ascontiguousarray(np.hstack(rows))


def _numbered(names: Array, labels: Sequence[str]) -> Array:
    place = {label: i for i, label in enumerate(labels)}
    if unknown := [str(name) for name in names if str(name) not in place]:
        known = ", ".join(labels) or "none"
        raise UsageError(f"y has {unknown[0]!r}, no label of the task", f"labels are: {known}")
    return np.array([place[str(name)] for name in names], np.int64)


def load_data(name: str) -> Pair:
    """Return samples [n, features] and labels [n] of a bundled dataset or a file.

    ``digits-train``, ``digits-test``, or a file that `--stream replay:FILE` reads: npz, CSV, IDX,
    LIBSVM; a relative path is sought in ``$FEDAGENT_DATA`` too.

    Raises:
        FedagentError: There is none, or it cannot be read.
    """
    found = load(name)
    return found.x, found.y


def split(whole: Pair, agents: int, *, dirichlet: float | None, seed: int) -> list[Pair]:
    """Return a part for each agent: at random, or by labels drawn from Dir(`dirichlet`).

    Raises:
        UsageError: There are fewer samples than agents, or no classes to deal by.
    """
    x, y = whole
    if len(x) < agents:
        raise UsageError(f"{len(x)} samples for {agents} agents", "give more, or fewer agents")
    if dirichlet is None:
        parts = iid(np.zeros(len(x), np.int64), agents, seed=seed)
    else:
        if dirichlet <= 0 or y.dtype.kind not in "iub":
            reason = "dirichlet deals by classes" if dirichlet > 0 else f"dirichlet is {dirichlet}"
            raise UsageError(reason, "give whole numbers as y, and a number over 0, such as 0.3")
        parts = by_dirichlet(y.astype(np.int64), agents, gamma=dirichlet, seed=seed)
    return [(x[rows], y[rows]) for rows in parts]


def held_out(whole: Pair, share: float, *, seed: int) -> tuple[Pair, Pair]:
    """Return what is left to learn from, and a random share for the evaluation."""
    x, y = whole
    size = round(share * len(x))
    if not 0 < size < len(x):
        raise UsageError(f"test is {share} of {len(x)} samples", "hold out a share such as 0.2")
    order = np.random.default_rng(seed).permutation(len(x))
    return (x[order[size:]], y[order[size:]]), (x[order[:size]], y[order[:size]])


def write(folder: Path, name: str, samples: Pair) -> Path:
    """Write samples as a file that readers take; `UsageError` if no stream can name it."""
    if "," in str(folder):
        raise UsageError(
            f"{folder} contains a comma, which would end the path in a stream", "rename it"
        )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.npz"
    np.savez(path, x=samples[0], y=samples[1])
    return path


def stream_of(path: Path, samples: int) -> str:
    """Return the stream of a file: all of it at once, and then as good as nothing."""
    start = min(samples, MAX_SAMPLES)
    return f"replay:{path},start={start},rate=0.000001,buffer={max(start, BUFFER)}"
