"""An edge is a witness: an older copy, or a past written anew, does not go on unnoticed."""

from pathlib import Path

import pytest
from msgspec import structs

from fedagent_coordinator.books.write import Books
from fedagent_coordinator.errors import HistoryLostError, StoreFailedError
from fedagent_node.data_dir import load_or_create
from fedagent_protocol.messages import LedgerHead
from fedagent_protocol.signed import ledger_head
from tests.fakes.stored_runs import (
    begun,
    files_of,
    lay_down,
    play,
    recompute,
    small_plan,
    small_view,
)


def _open(folder: Path, *, accept: bool = False) -> Books:
    return Books(folder, identity=load_or_create(folder), accept_lost_history=accept)


@pytest.fixture
def story(tmp_path: Path) -> tuple[dict[str, bytes], dict[str, bytes], LedgerHead]:
    """A backup after one round, all files after three, and the head that an edge was given."""
    with _open(tmp_path / "a") as store:
        run = begun(store).run_id
        play(store, run, small_plan(small_view(1, [100])), {0})
    backup = files_of(tmp_path / "a")
    with _open(tmp_path / "a") as store:
        for number in (2, 3):
            play(store, run, small_plan(small_view(number, [100])), {0})
        head = store.head
    assert head is not None
    return backup, files_of(tmp_path / "a"), head


def test_what_was_only_forgotten_by_a_backup_is_refused(
    tmp_path: Path, story: tuple[dict[str, bytes], dict[str, bytes], LedgerHead]
) -> None:
    backup, newest, head = story
    with _open(lay_down(tmp_path / "newest", newest)) as store:
        store.check_witness("hall", head)
    folder = lay_down(tmp_path / "backup", backup)
    with _open(folder) as store, pytest.raises(HistoryLostError, match="edge hall is a witness"):
        store.check_witness("hall", head)
    with _open(folder, accept=True) as store:
        store.check_witness("hall", head)
        assert "edge hall is a witness" in store.read.ledger.show(limit=1)[0].target
    with _open(folder) as store:
        store.check_witness("hall", head)
        other = structs.replace(head, seq=head.seq + 9)
        other = _signed(tmp_path / "backup", other)
        with pytest.raises(HistoryLostError):
            store.check_witness("hall", other)


def test_a_past_that_was_written_anew_with_the_key_needs_the_edges_too(
    tmp_path: Path, story: tuple[dict[str, bytes], dict[str, bytes], LedgerHead]
) -> None:
    folder, head = lay_down(tmp_path / "copy", story[1]), story[2]
    recompute(folder, "UPDATE orders SET num_samples = 999", key=load_or_create(folder))
    with _open(folder) as store:
        assert store.read.ledger.verify().balanced
        with pytest.raises(HistoryLostError, match="here it is another one"):
            store.check_witness("hall", head)


def test_what_this_coordinator_did_not_sign_is_no_witness(
    tmp_path: Path, story: tuple[dict[str, bytes], dict[str, bytes], LedgerHead]
) -> None:
    with _open(lay_down(tmp_path / "copy", story[1])) as store:
        invented = structs.replace(story[2], seq=10_000)
        store.check_witness("hall", invented)
        store.check_witness("hall", structs.replace(invented, coordinator="another"))


def test_a_second_coordinator_on_the_same_books_writes_no_other_past(tmp_path: Path) -> None:
    with _open(tmp_path) as old:
        run = begun(old).run_id
        with _open(tmp_path) as new:
            play(new, run, small_plan(small_view(1, [100])), {0})
        for _ in range(2):
            with pytest.raises(StoreFailedError, match="another process has written"):
                old.reserve(run, small_plan(small_view(2, [100])), policy="random")
            with pytest.raises(StoreFailedError, match="another process has written"):
                old.note("afterwards")
    with _open(tmp_path) as store:
        assert store.read.last_round(run) == 1
        assert store.read.ledger.verify().problems == ()


def _signed(folder: Path, head: LedgerHead) -> LedgerHead:
    signature = load_or_create(folder).sign(ledger_head(head.seq, head.hash))
    return structs.replace(head, signature=signature)
