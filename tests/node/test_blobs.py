"""Blobs are there whole or not at all, and are what their name says."""

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_node.blobs import BlobStore
from fedagent_protocol.errors import DigestError, ProtocolError


def _name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_changed_file_is_never_handed_out_and_can_be_put_again(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    digest = store.put(b"weights")
    store.path(digest).write_bytes(b"wrights")
    with pytest.raises(DigestError):
        store.get(digest)
    assert not store.has(digest)
    store.path(digest).write_bytes(b"wrights")
    assert store.put(b"weights") == digest
    assert store.get(digest) == b"weights"


@given(st.binary(min_size=1, max_size=400), st.integers(1, 50), st.randoms())
def test_pieces_in_any_order_and_twice_make_the_blob(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, size: int, random: "object"
) -> None:
    store = BlobStore(tmp_path_factory.mktemp("blobs"))
    pieces = [(at, data[at : at + size]) for at in range(0, len(data), size)] * 2
    random.shuffle(pieces)  # type: ignore[attr-defined]
    for at, piece in pieces:
        store.write_part(_name(data), at, piece)
    assert not store.has(_name(data))
    store.finish_part(_name(data))
    store.finish_part(_name(data))
    assert store.get(_name(data)) == data


def test_a_wrong_part_is_dropped(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    digest = _name(b"right")
    store.write_part(digest, 0, b"wrong")
    with pytest.raises(DigestError):
        store.finish_part(digest)
    assert list(tmp_path.iterdir()) == []
    store.write_part(digest, 0, b"right")
    store.drop_part(digest)
    assert list(tmp_path.iterdir()) == []


def test_oversize_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, max_bytes=10)
    with pytest.raises(ProtocolError, match="the limit is"):
        store.put(b"x" * 11)
    with pytest.raises(ProtocolError, match="the limit is"):
        store.write_part("0" * 64, 8, b"xxx")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_sync_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlobStore(tmp_path)

    def broken(_fd: int) -> None:
        raise OSError(5, "input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="input/output"):
            store.put(b"weights")
    assert list(tmp_path.iterdir()) == []


def test_left_overs_of_a_crash_are_swept_at_start(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    digest = store.put(b"weights")
    (tmp_path / f"{'0' * 64}.new").write_bytes(b"half")
    store.write_part("1" * 64, 0, b"half")
    BlobStore(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [digest]
