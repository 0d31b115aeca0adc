"""What opinions have cost, and the answers that cost it: one small file, replaced whole.

An answer with noise is sent only after it stands here: a device that restarts repeats its noise
instead of drawing it again, and what its owner grants stays spent.
"""

from pathlib import Path

import msgspec
from msgspec import Struct

from fedagent_node.data_dir import write_private
from fedagent_protocol.failpoints import Checkpoint, hit
from fedagent_protocol.messages import Opinion, OpinionMode

from .core.effects import OpinionAnswer
from .core.opinions import OpinionRecord
from .errors import OpinionBookError

MAX_RUNS = 1024
"""Runs that are remembered; the one that was silent for longest is forgotten first."""


class _Row(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    spent: float
    mode: OpinionMode
    opinion: Opinion


class _Book(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ever: float = 0.0
    runs: dict[str, _Row] = msgspec.field(default_factory=dict)


class OpinionBook:
    """The durable part of the evaluator; raises `OpinionBookError` if the file is damaged."""

    def __init__(self, path: Path, *, checkpoint: Checkpoint = hit) -> None:
        self._path = path
        self._checkpoint = checkpoint
        self._book = _Book()
        try:
            self._book = msgspec.json.decode(path.read_bytes(), type=_Book)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise OpinionBookError(path, error.strerror or "cannot be read") from error
        except (msgspec.DecodeError, ValueError) as error:
            raise OpinionBookError(path, "is damaged") from error

    @property
    def record(self) -> OpinionRecord:
        """What the evaluator begins with."""
        runs = self._book.runs
        answers = [OpinionAnswer(row.opinion, row.mode) for row in runs.values()]
        return OpinionRecord(
            answers, {run: row.spent for run, row in runs.items()}, self._book.ever
        )

    def keep(self, answer: OpinionAnswer, spent: float) -> None:
        """Keep an answer durably; after an `OpinionBookError` nothing is kept."""
        run = answer.opinion.run
        rows = {name: row for name, row in self._book.runs.items() if name != run}
        rows[run] = _Row(spent=spent, mode=answer.mode, opinion=answer.opinion)
        while len(rows) > MAX_RUNS:
            del rows[next(iter(rows))]
        book = _Book(ever=self._book.ever + answer.opinion.epsilon, runs=rows)
        try:
            self._checkpoint("agent.opinions.before-write")
            write_private(self._path, msgspec.json.encode(book))
            self._checkpoint("agent.opinions.kept")
        except OSError as error:
            raise OpinionBookError(self._path, error.strerror or "cannot be written") from error
        self._book = book
