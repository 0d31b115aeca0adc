"""Runs that a file keeps, one line of JSON each: what is there is not played again."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

Run = dict[str, Any]
"""`part`, `label`, `seed` and what was measured; from JSON, so that values are anything."""
Runs = dict[str, list[Run]]
"""Runs by label, in the order of the seeds."""


class Job(Protocol):
    """Something to play on a seed."""

    @property
    def part(self) -> str:
        """What it belongs to."""

    @property
    def label(self) -> str:
        """What documents call it; unique in its part."""

    def measure(self, seed: int) -> dict[str, object]:
        """Play it."""


def read(path: Path) -> list[Run]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def part(path: Path, name: str) -> Runs:
    found: Runs = {}
    for run in sorted(read(path), key=lambda one: int(one["seed"])):
        if run["part"] == name:
            found.setdefault(run["label"], []).append(run)
    return found


def play_missing(path: Path, jobs: Iterable[Job], seeds: Sequence[int]) -> None:
    """Play what the file does not hold, a seed of everything at a time."""
    known = {(run["part"], run["label"], run["seed"]) for run in read(path)}
    every = list(jobs)
    for seed in seeds:
        for job in every:
            if (job.part, job.label, seed) in known:
                continue
            run = {"part": job.part, "label": job.label, "seed": seed, **job.measure(seed)}
            line = json.dumps(run, separators=(",", ":"))
            with path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
