"""How many updates have cost privacy, by run: one small file, synced before an update is kept.

An update is offered only after it stands here, so that no kill and no power cut makes epsilon
fall; what is counted may never have left.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from fedagent_node.data_dir import write_private
from fedagent_protocol.failpoints import Checkpoint, hit
from fedagent_protocol.messages import RunId

from .book_file import read_book, writing_book
from .errors import PrivacyBookError

MAX_RUNS = 10_000
"""None is ever forgotten: whoever names runs would get a fresh epsilon."""


class _Book(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    releases: dict[RunId, Annotated[int, Meta(ge=0)]] = {}


class PrivacyBook:
    """The count; raises `PrivacyBookError` if the file is damaged."""

    def __init__(self, path: Path, *, checkpoint: Checkpoint = hit) -> None:
        self._path = path
        self._checkpoint = checkpoint
        self._book = read_book(path, _Book(), PrivacyBookError)

    @property
    def releases(self) -> Mapping[str, int]:
        """Updates by run."""
        return self._book.releases

    def charge(self, run: str, releases: int) -> None:
        """Count durably that a run has had so many updates; never fewer than before."""
        before = self._book.releases
        if run not in before and len(before) >= MAX_RUNS:
            raise PrivacyBookError(self._path, f"already has {MAX_RUNS} runs")
        book = _Book(releases={**before, run: max(releases, before.get(run, 0))})
        with writing_book(self._path, PrivacyBookError):
            self._checkpoint("agent.privacy.before-charge")
            write_private(self._path, msgspec.json.encode(book))
            self._checkpoint("agent.privacy.charged")
        self._book = book
