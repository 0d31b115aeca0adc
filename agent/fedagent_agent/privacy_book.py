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
        self._book = _Book()
        try:
            self._book = msgspec.json.decode(path.read_bytes(), type=_Book)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise PrivacyBookError(path, error.strerror or "cannot be read") from error
        except (msgspec.DecodeError, ValueError) as error:
            raise PrivacyBookError(path, "is damaged") from error

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
        try:
            self._checkpoint("agent.privacy.before-charge")
            write_private(self._path, msgspec.json.encode(book))
            self._checkpoint("agent.privacy.charged")
        except OSError as error:
            raise PrivacyBookError(self._path, error.strerror or "cannot be written") from error
        self._book = book
