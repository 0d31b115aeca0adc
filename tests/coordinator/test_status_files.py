"""The file of devices: who is where, for people, and rarely written."""

import os
from pathlib import Path

from fedagent_coordinator.status_files import (
    DEVICES_FILE,
    GAP_S,
    TOUCH_S,
    Device,
    DeviceBook,
    read_devices,
)
from fedagent_protocol.messages import DeviceNote, EdgeStatus

RUN, EPOCH, NEXT = "1" * 32, "e" * 32, "f" * 32


def status(*devices: DeviceNote, epoch: str = EPOCH, run: str = RUN) -> EdgeStatus:
    return EdgeStatus(run=run, epoch=epoch, devices=devices)


def known(folder: Path) -> dict[str, Device]:
    found = read_devices(folder)
    assert found is not None
    return found.devices


def test_a_device_comes_moves_and_leaves(tmp_path: Path) -> None:
    book = DeviceBook(tmp_path, RUN)
    book.note("hall", status(DeviceNote(agent="a", software="f 1", address="10.0.0.9")), 1000)
    book.note("yard", status(DeviceNote(agent="a", software="f 1", address="10.0.0.9")), 2000)
    book.write(0.0)
    here = Device(seen_ms=2000, software="f 1", address="10.0.0.9", edges=["hall", "yard"])
    assert known(tmp_path) == {"a": here}
    book.note("hall", status(DeviceNote(agent="a", here=False, age_ms=1500, reason="no")), 9000)
    book.lose("yard", 9500)
    book.close(9999)
    assert known(tmp_path) == {"a": Device(seen_ms=9500, reason="no")}


def test_an_edge_that_starts_again_has_nobody_until_it_says_so(tmp_path: Path) -> None:
    book = DeviceBook(tmp_path, RUN)
    book.note("hall", status(DeviceNote(agent="a"), DeviceNote(agent="b")), 1000)
    book.note("hall", status(DeviceNote(agent="b"), epoch=NEXT), 5000)
    book.write(0.0)
    assert {agent: one.edges for agent, one in known(tmp_path).items()} == {"a": [], "b": ["hall"]}
    book.note("hall", status(DeviceNote(agent="c"), run="2" * 32), 6000)
    assert "c" not in book.known.devices, "of another run"


def test_it_is_written_when_something_changed_and_not_at_once_again(tmp_path: Path) -> None:
    book = DeviceBook(tmp_path, RUN)
    for second in range(100):
        book.note("hall", status(), 1000)
        book.write(float(second))
    assert not (tmp_path / DEVICES_FILE).exists(), "a heartbeat is no news"
    for i in range(50):
        book.note("hall", status(DeviceNote(agent=f"agent-{i}")), 1000)
        book.write(200.0 + i * GAP_S / 100)
    assert len(known(tmp_path)) == 1
    later = 200.0 + 2 * GAP_S
    book.write(later)
    assert len(known(tmp_path)) == 50
    os.utime(tmp_path / DEVICES_FILE, (1, 1))
    book.write(later + TOUCH_S / 2)
    assert (tmp_path / DEVICES_FILE).stat().st_mtime == 1
    book.write(later + TOUCH_S + 1)
    assert (tmp_path / DEVICES_FILE).stat().st_mtime > 1, "whoever is online was so until then"


def test_what_was_known_stays_known_over_a_restart(tmp_path: Path) -> None:
    book = DeviceBook(tmp_path, RUN)
    book.note("hall", status(DeviceNote(agent="a", address="10.0.0.9")), 1000)
    book.write(0.0)
    again = DeviceBook(tmp_path, "2" * 32)
    assert again.known.devices == {"a": Device(seen_ms=1000, address="10.0.0.9")}
    (tmp_path / DEVICES_FILE).write_text("{")
    assert DeviceBook(tmp_path, RUN).known.devices == {}
    (tmp_path / DEVICES_FILE).unlink()
    (tmp_path / DEVICES_FILE).mkdir()
    book.note("hall", status(DeviceNote(agent="b")), 2000)
    book.write(100.0)  # nobody's business


def test_hostile_words_are_cut_and_printable(tmp_path: Path) -> None:
    book = DeviceBook(tmp_path, RUN)
    bad = DeviceNote(agent="a", software="\x1b[2J", address="a\nb", reason="\x1b]0;" * 30)
    book.note("hall", status(bad), 1000)
    device = book.known.devices["a"]
    assert all(text.isprintable() for text in (device.software, device.address, device.reason))
