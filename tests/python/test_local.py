"""A federation from Python: real processes, data of the caller's own, and what came of it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import fedagent
from fedagent import Run, run_local
from fedagent.local import Named
from fedagent_testbed.local_fleet import Fleet, LocalFleet

from .runs import RECIPE, samples


def test_all_rounds_are_done_with_everybody(run: Run) -> None:
    assert run.rounds == 4
    assert run.seconds_to_first_round is not None
    assert 0 < run.seconds_to_first_round < run.seconds
    data = run.read()
    assert data.rounds["ordered"] == data.rounds["in_time"] == [3] * 4
    assert data.rounds["policy"] == ["random"] * 4
    assert sorted(map(str, data.devices["label"])) == ["agent-1", "agent-2", "agent-3"]
    assert data.orders["num_samples"] == [150] * 12


def test_what_is_not_there_is_said(run: Run, tmp_path: Path) -> None:
    with pytest.raises(fedagent.CliError, match="no model of round 99 is kept"):
        run.load_model(99)
    with pytest.raises(fedagent.CliError, match="no run in"):
        fedagent.read(tmp_path)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"agents": 0}, "agents is 0; give 1 to 64"),
        ({"edges": 17}, "edges is 17"),
        ({"budget": 0}, "budget is 0, but a device asks 1; give 1 or more"),
        ({"data": [samples(9)]}, "data is 1 parts for 3 agents"),
        ({"data": ["digits", 3, "digits"]}, "neither a stream nor an"),
        ({"data": 7}, "data is int for 3 agents"),
        ({"test": 0.2}, "test as a share needs arrays"),
        ({"dirichlet": 0.3}, "dirichlet needs arrays"),
        ({"test": object()}, "test is not a pair"),
        ({"data": samples(9), "test": (samples(9),)}, "neither a stream nor an"),
        ({"policy": "nobody"}, "no policy is named 'nobody'"),
        ({"sets": {"rounds.count": 0}}, "the task sets no number of rounds"),
    ],
)
def test_what_does_not_fit_starts_nothing(
    tmp_path: Path, given: dict[str, object], said: str
) -> None:
    asked: dict[str, object] = {"agents": 3, "folder": tmp_path / "run", "progress": False, **given}
    with pytest.raises(fedagent.FedagentError) as caught:
        run_local(fedagent.Task.from_recipe(RECIPE), **asked)  # type: ignore[arg-type]  # as said
    assert said in str(caught.value)
    assert not list(tmp_path.rglob("*.log"))


@pytest.mark.parametrize(
    ("strategy", "says"),
    [("best", "no aggregation strategy is named"), (("fedprox", {"nu": 1}), "'nu' is unknown")],
)
def test_a_strategy_that_does_not_fit_starts_nothing(
    tmp_path: Path, strategy: Named, says: str
) -> None:
    with pytest.raises(fedagent.FedagentError, match=says):
        run_local("digits", agents=1, folder=tmp_path / "run", strategy=strategy)
    assert not list(tmp_path.rglob("*.log"))


@pytest.mark.nightly
def test_a_run_that_learnt_nothing_says_why(tmp_path: Path) -> None:
    x, _ = samples(30)
    with pytest.raises(fedagent.FleetError) as caught:
        run_local(
            fedagent.Task.from_recipe(RECIPE),
            agents=2,
            rounds=1,
            data=(x[:, :2], [0, 1] * 15),
            folder=tmp_path / "run",
            progress=False,
        )
    assert "no update of any device was used: schema" in str(caught.value)
    assert "task wants 3, the stream has 2" in str(caught.value)


def test_nobody_is_cut_off_while_devices_train(tmp_path: Path) -> None:
    agents: dict[str, dict[str, object]] = {"a": {}, "b": {}}
    fleet = Fleet(Path("r"), (), 1, directory=tmp_path, agents=agents, edges={}, max_wait_s=4.0)
    running = LocalFleet(fleet, stopped=lambda: 0)

    def later(seconds: float) -> list[object]:
        return [event["text"] for _, event in running._progress(at + seconds)]

    waits: dict[str, object] = {"event": "waiting", "reason": "agents", "agents": 1, "wanted": 2}
    at = time.monotonic()
    running._took("coordinator", {**waits, "at": at})
    running._took("coordinator", {**waits, "at": at + 100.0})
    assert later(31.0) == ["waiting for agents: 1 of 2"]
    with pytest.raises(fedagent.FleetError, match="for 120 s, waiting for agents: 1 of 2; read"):
        later(121.0)
    running._took("a", {"event": "ordered", "at": at + 121.0})
    assert later(130.0) == ["1 of 2 devices train"]
    assert later(100_000.0) == ["1 of 2 devices train"]
    running._took("a", {"event": "update", "at": at + 100_000.0})
    assert later(100_124.0) == ["waiting for the round's end"]
    with pytest.raises(fedagent.FleetError, match="for 124 s, waiting for the round's end"):
        later(100_125.0)


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(fedagent.UsageError, match="not empty"):
        run_local("digits", folder=tmp_path)


SCRIPT = """
import asyncio, sys, fedagent
async def main():
    fedagent.run_local("digits", agents=2, rounds=100_000, folder="run")
asyncio.run(main())
"""


@pytest.mark.nightly
def test_ctrl_c_ends_every_process_and_keeps_the_books(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        script = subprocess.Popen(
            [sys.executable, "-c", SCRIPT], cwd=tmp_path, stdout=out, stderr=out
        )
    shown = ""
    give_up = time.monotonic() + 600
    while "round 2/" not in shown and time.monotonic() < give_up:
        time.sleep(0.05)
        shown = (tmp_path / "out").read_text()
    children = psutil.Process(script.pid).children(recursive=True)
    assert len(children) >= 4
    os.kill(script.pid, signal.SIGINT)
    assert script.wait(30) == -signal.SIGINT
    # Who has ended and is not fetched yet by its new parent is a zombie: that is ended.
    _, alive = psutil.wait_procs(children, timeout=600)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
    assert "ended early; read the data it left" in (tmp_path / "out").read_text()
    assert len(fedagent.read(tmp_path / "run").rounds["round"]) >= 2
