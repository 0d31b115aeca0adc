"""`fedagent beliefs`: the owner of a device reads what it kept."""

from pathlib import Path

import pytest

from fedagent_agent.peers.core.records import ArmStats, SlotRecord, StoreSlot
from fedagent_agent.peers.store import PeerStore
from tests.typed import call, last_object

RUNS = ("ab" * 16, "cd" * 16)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An agent named hall that has lived three slots of two runs."""
    folder = tmp_path / "agent-hall"
    folder.mkdir()
    store = PeerStore(folder)
    for n, run in enumerate((*RUNS, RUNS[1])):
        record = SlotRecord(
            run=run,
            round=n,
            slot=n + 2,
            opinion=0.5 + n / 8,
            trained=False,
            mean=0.5,
            pulls=1,
            belief=0.25,
            index=0.75,
            chosen=n > 0,
            best=("a" * 32, "b" * 32),
        )
        store.keep(StoreSlot(1, ArmStats(0.5, 1, n + 2), record))
    store.close()
    return tmp_path


def test_slots_are_shown_to_people_and_programs(home: Path) -> None:
    text = call(home, "beliefs", "--name", "hall").stdout
    assert "abababab" in text
    assert "0.625" in text
    assert "aaaaaaaa bbbbbbbb" in text
    read = last_object(call(home, "beliefs", "--name", "hall", "--last", "2", "--json"))
    slots = read["slots"]
    assert [slot["slot"] for slot in slots] == [3, 4]
    assert slots[1]["opinion"] == 0.75
    where = str(home / "agent-hall")
    read = last_object(call(home, "beliefs", "--data-dir", where, "--run", "ab", "--json"))
    assert [slot["run"] for slot in read["slots"]] == [RUNS[0]]


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_plot_is_drawn(home: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra `report`")
    done = call(home, "beliefs", "--name", "hall", "--plot", f"here.{suffix}")
    assert done.returncode == 0, done.stderr
    drawn = (home / f"here.{suffix}").read_bytes()
    assert drawn.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    assert suffix == "png" or b"volunteered" in drawn


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--data-dir", "nowhere"), 40, "give the --data-dir of an agent"),
        (("--name", "hall", "--data-dir", "x"), 2, "give one of them"),
        (("--name", "hall", "--plot", "here.txt"), 2, "name it .svg"),
        (("--name", "hall", "--plot", "no/here.svg"), 2, "name a file in a folder"),
        (("--name", "hall", "--run", "ef", "--plot", "here.svg"), 40, "no slots to plot"),
    ],
)
def test_what_cannot_be_shown_ends_with_one_line(
    home: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = call(home, "beliefs", *arguments)
    assert done.returncode == code
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--peer", "Not an id", "write ID or ID:KM"),
        ("--peer", "abc:-1", "write ID or ID:KM"),
        ("--peer", "abc:1e", "write ID or ID:KM"),
        ("--position", "1", "write e.g. 0.12,-0.4"),
        ("--position", "1,nan", "write e.g. 0.12,-0.4"),
        ("--position", "1,2e9", "two numbers within"),
    ],
)
def test_neighbours_and_places_that_are_none_are_refused(
    home: Path, option: str, value: str, said: str
) -> None:
    done = call(home, "start", "--stream", "digits", option, value, "--print-config")
    assert done.returncode == 2
    assert said in done.stderr
