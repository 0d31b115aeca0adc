"""Named crash points: what a test can make a process die of, at a chosen step.

``FEDAGENT_FAILPOINT=name:kill`` ends the own process with SIGKILL when it comes
to ``hit("name")``; ``name:kill@3`` does so at the third time. Several points are
separated by commas. Unset, a hit is one call that returns.
"""

import os
import signal
from collections.abc import Callable
from typing import Never

VARIABLE = "FEDAGENT_FAILPOINT"

TRANSACTIONS = {
    "begin": "a run, with its recipe",
    "index": "ids of new clients or edges",
    "label": "what people call them",
    "reserve": "round, view, selection, reservations",
    "settle": "outcomes, payments, policy",
    "void": "what a restart found in flight",
    "evaluate": "opinions, or volunteers",
    "forget": "what an edge had learnt and lost",
    "model": "a global model",
    "metrics": "the held-out score of a model",
    "standardize": "means and deviations of the features",
    "snapshot": "the learner's state",
    "prune": "what old rounds saw is dropped",
    "extend": "more rounds of a run that had ended",
    "note": "a repair that a person asked for",
    "end": "the end of a run",
}
"""Each has ``.before-commit``, ``.committed`` and ``.marked``, after the mark outside it rose."""

POINTS = {
    "coordinator": {
        **{
            f"{name}.{step}": what
            for name, what in TRANSACTIONS.items()
            for step in ("before-commit", "committed", "marked")
        },
        "decided": "who is chosen is known, nothing is reserved",
        "reserve.entries": "the reservations are written, the transaction is open",
        "reserved": "the reservations are durable, nobody is ordered",
        "orders.half": "half of the edges are ordered",
        "reported": "a report came, nothing is done with it",
        "settling": "all reports are in, nothing is written",
        "settle.first-entry": "the first of the payments is written",
        "settled": "the round is paid, no receipt is sent",
        "learnt": "the policy has learnt",
        "merged": "the global model is computed, not yet committed",
        "committed": "the global model is committed, not yet sent",
        "evaluating": "a call is decided, not yet sent",
        "evaluated": "opinions are in, not yet in the books",
        "standardizing": "the samples' moments are added up",
        "standardized": "the task has the scales",
        "snapshot": "the policy's state is written",
        "pruned": "what old rounds saw is dropped, in a piece",
        "prune.written": "the file of closed rounds is whole, no row names it",
        "prune.named": "the row that closes them is written, the transaction is open",
        "prune.dropped": "their rows are dropped, the transaction is open",
        "compact.begun": "the database is to be written anew",
        "compact.written": "it is, in the WAL",
        "ending": "the last round is over",
        "reported-result": "the result of the run is written",
    },
    "edge": {
        "round_saved": "a round is on the disk, nobody is ordered",
        "chunk_written": "a part of an update is in the spool",
        "complete": "an update is whole, not durable",
        "spooled": "an update is durable, not receipted",
        "receipted": "the receipt went out",
        "aggregated": "the new model is on the disk",
        "reported": "the report is on the disk, not sent",
        "spool_cleared": "the spool is empty, the report is not sent",
        "model_stored": "a model that came is on the disk",
        "model_saved": "the edge's state names it",
    },
    "agent": {
        "model.chunk-written": "a part of a model is on the disk",
        "model.whole": "a model is whole and verified",
        "books.before-put": "trained, nothing is kept, and epsilon is not charged",
        "books.file-written": "the update's file is there",
        "books.put": "the update is kept and charged, not offered",
        "books.dropped": "the record of a receipted update is gone, its file not",
        "opinions.before-write": "an opinion is computed",
        "opinions.kept": "an opinion is charged to its limit, not sent",
        "state.before-write": "the learner's state is computed",
        "state.kept": "the learner's state is kept",
    },
}
"""Every crash point by role, and what has happened there; ``FEDAGENT_FAILPOINT=ROLE.NAME:kill``."""

Checkpoint = Callable[[str], None]
"""What a runtime calls between any two disk effects; `hit` by default."""


class FailpointError(ValueError):
    """Raised at start when the variable cannot be read."""


def parse(text: str) -> dict[str, int]:
    """Return how many hits each named point survives; raises `FailpointError`."""
    points: dict[str, int] = {}
    for item in filter(None, text.split(",")):
        name, _, action = item.strip().partition(":")
        verb, _, count = action.partition("@")
        if not name or verb != "kill" or (count and not count.isdigit()) or count == "0":
            raise FailpointError(f"{VARIABLE}={text[:80]!r}: use name:kill or name:kill@N")
        points[name] = int(count or "1") - 1
    return points


def hit(name: str) -> None:
    """Die here if the environment asks for it."""
    if _points:
        _count_down(name)


def _count_down(name: str) -> None:
    left = _points.get(name)
    if left is None:
        return
    if left == 0:
        _die()
    _points[name] = left - 1


def _die() -> Never:
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit(137)  # unreachable after SIGKILL; keeps the type honest


_points = parse(os.environ.get(VARIABLE, ""))
