"""A full disk: the edge says so itself, fails what it cannot do, and comes back with room."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedagent_edge.core.rounds import DISK_AGAIN_S as AGAIN_S
from fedagent_protocol import messages as m

from .harness import RUN, Field, field_of

SIZE = 100_000
"""Of the model's numbers: 400 KB, and as much for every update."""
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(disk: Path, *, leave: int = 0) -> Path:
    """Let others take all room but this."""
    path = disk / "of-others"
    path.unlink(missing_ok=True)
    free = os.statvfs(disk)
    size = free.f_bavail * free.f_frsize - leave
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    return path


def last_status(field: Field) -> m.EdgeStatus:
    return [one for one in field.to_coordinator if isinstance(one, m.EdgeStatus)][-1]


@pytest.mark.parametrize("leave", [0, 500_000])
def test_an_edge_without_room_says_so_steps_out_and_comes_back(disk: Path, leave: int) -> None:
    field = field_of(disk / "edge", 3, size=SIZE)
    others = fill(disk, leave=leave)
    began = field.now
    field.order(deadline_ms=30_000, max_wait_ms=60_000, min_updates=3)
    report = field.run_until_report(max_s=70)
    assert "No space left on device" in report.failed
    assert "the edge's disk" in report.failed
    assert field.now - began < 3.0, "nobody waits for it"
    assert report.used == 0
    accepted = [one.id for one in field.agents.values() if one.receipts]
    assert [o.agent for o in report.outcomes if o.valid] == accepted
    status = last_status(field)
    assert status.trouble == "No space left on device"
    assert status.counters["disk_full"] == 1
    # It refuses what is ordered all the same, and takes no model.
    field.order(2)
    assert "the edge's disk is full" in field.run_until_report(2).failed
    field.run_for(3 * AGAIN_S)
    said = [one.text for one in field.notes if "does not take part" in one.text]
    assert said == [
        (
            "the edge does not take part in rounds until its disk has free space: No space left on "
            "device"
        )
    ]
    assert not any("model from the coordinator" in one.text for one in field.notes)
    others.unlink()
    field.run_for(AGAIN_S + 0.1)
    assert last_status(field).trouble == ""
    assert (
        field.notes[-1].text == "the disk has free space again: the edge takes part in rounds again"
    )
    field.order(3)
    assert field.run_until_report(3).used == 3


def test_a_model_that_finds_no_room_is_not_the_coordinators_fault(disk: Path) -> None:
    field = Field(disk / "edge", size=SIZE)
    fill(disk, leave=100_000)
    field.welcome()
    model = field.model
    offer = m.GlobalModel(
        run=RUN, digest=field.digest, size=len(model), chunk_bytes=len(model), first=model
    )
    field.coordinator(offer)
    field.run_for(0.0)
    assert last_status(field).trouble == "No space left on device"
    assert [one.text for one in field.notes] == [
        (
            "the edge does not take part in rounds until its disk has free space: No space left on "
            "device"
        )
    ]
    assert not list((disk / "edge" / "models").iterdir()), "what came of it is no use"
    (disk / "of-others").unlink()
    field.run_for(AGAIN_S + 0.1)
    field.give_model()


def test_what_found_no_room_is_saved_when_there_is_some_again(disk: Path) -> None:
    field = field_of(disk / "edge", 2, size=64)
    others = fill(disk)
    field.receipt_reports = False
    # Beyond what is left of the journal's last page.
    run = "2" * 32
    field.welcome(run=run)
    for number in range(1, 40):
        field.order(number, run=run)
        field.run_for(0.1)
    assert last_status(field).trouble
    others.unlink()
    field.run_for(2 * AGAIN_S)
    before = field.core.memory
    assert before.run == run
    field.open()
    assert field.core.memory == before
