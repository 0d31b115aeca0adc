"""The role as a process: its settings, how it ends, with which code, and what it says of a run."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from fedagent_coordinator.__main__ import run
from fedagent_coordinator.books.write import Books
from fedagent_coordinator.config import CoordinatorConfig
from fedagent_coordinator.daemon import Daemon, words_of
from fedagent_node.data_dir import hold_data_dir, load_or_create
from fedagent_node.effects import Emit
from fedagent_node.settings import SettingError
from fedagent_protocol import messages as m
from tests.fakes.coordinator_site import RECIPE, Site, recipe, toy_edges


def config_of(folder: Path, **changes: object) -> str:
    path = folder / "toy.toml"
    path.write_text(RECIPE)
    given = {"data_dir": str(folder / "data"), "recipe": str(path), "broker": "embedded"}
    return json.dumps({**given, "discovery": "off", "json_events": True, **changes})


def test_what_no_agent_has_signed_is_not_paid_and_not_merged(tmp_path: Path) -> None:
    """A ghost edge that invents what agents did earns nothing."""
    given = recipe()
    site = Site(tmp_path, given, toy_edges(given), identity=load_or_create(tmp_path))
    site.run()
    end = site.events[-1].fields
    assert (end["rounds_done"], end["spent_micro"], end["updates_used"]) == (4, 0, 0)
    assert end["ledger_balanced"] is True
    told = [one.message for one in site.sent if isinstance(one.message, m.ReportReceipt)]
    assert {one.unpaid for one in told} == {tuple(one.id for one in site.edges[0].agents)}
    site.close()
    with Books(tmp_path, identity=load_or_create(tmp_path)) as store:
        read = store.read
        outcomes, results = read.outcomes(read.run().run_id), read.edge_results(read.run().run_id)
    assert {row.failed for row in results} == {"bad_claim"}
    assert {(row.status, row.reason) for row in outcomes} == {("rejected", "bad_claim")}


async def test_a_run_that_learnt_nothing_ends_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = Daemon(CoordinatorConfig.load(config_of(tmp_path), {}))

    async def nothing_is_used(_: object) -> None:
        daemon._show(Emit("end", {"updates_used": 0, "rounds_done": 2, "conclusion": ""}))

    monkeypatch.setattr(daemon._shell, "run", nothing_is_used)
    await daemon.run()
    assert "NOTHING WAS LEARNT: none of the 2 rounds used an update" in caplog.messages[-1]


async def test_it_ends_cleanly_at_a_signal(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "fedagent_coordinator", "--config", config_of(tmp_path))
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    assert child.stdout is not None
    try:
        while json.loads(await child.stdout.readline())["event"] != "waiting":
            pass
        child.send_signal(signal.SIGTERM)
        _, log = await child.communicate()
    except BaseException:
        child.kill()
        await child.communicate()
        raise
    assert child.returncode == 0
    assert b"Traceback" not in log


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def code(**changes: object) -> int:
        return run(CoordinatorConfig.load(config_of(tmp_path, **changes), {}))

    data, given = tmp_path / "data", recipe("rounds.count=1")
    assert code(recipe=str(tmp_path / "missing.toml")) == 2
    assert code(policy="nobody") == 34
    assert code(sets=["evaluation.dataset=missing.npz"]) == 36
    with hold_data_dir(data):
        assert code() == 75
    site = Site(data, given, toy_edges(given), identity=load_or_create(data))
    site.open()
    site.close()
    assert code(seed=99) == 31
    assert "--new-run" in capsys.readouterr().err
    site.run()
    site.close()
    assert code(sets=["rounds.count=1"]) == 0
    finished = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (finished["event"], finished["rounds_done"]) == ("finished", 1)


def test_the_log_says_why_opinions_are_missing() -> None:
    said = words_of("opinions", {"asked": 6, "missing": {"unsigned": 3, "gone": 1}})
    assert said == "opinions: asked 6, missing 3 unsigned, 1 gone"


def test_the_log_speaks_of_credits_and_shows_no_containers() -> None:
    given = {"round": 3, "spent_micro": 1_500_000, "timing_ms": {"train": 2.0}, "rent_micro": 0}
    said = words_of("round", {**given, "edge": "ab" * 16, "seconds": 0.123456})
    assert said == "round 3: spent 1.5 credits, edge abababab, seconds 0.1235"


def load(**given: object) -> CoordinatorConfig:
    return CoordinatorConfig.load(json.dumps({"data_dir": "d", "recipe": "r", **given}), {})


def test_defaults_and_overrides() -> None:
    config = load()
    assert (config.broker, config.wait_edges) == ("auto", 1)
    config = load(policy="cheapest", seed=4, sets=["a.b=1"])
    assert config.recipe_sets == ("a.b=1", "policy.name=cheapest", "seed=4")


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"recipe": None}, "recipe"),
        ({"wait_edges": 0}, "wait_edges"),
        ({"new_run": True, "more_rounds": 3}, "more_rounds"),
        ({"more_rounds": -1}, "more_rounds"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(change: dict[str, object], key: str) -> None:
    with pytest.raises(SettingError) as caught:
        load(**change)
    assert caught.value.key == key


def test_without_a_page_none_is_served() -> None:
    assert load().page() is not None
    assert load(no_web=True).page() is None
    with pytest.raises(SettingError, match="cannot be combined with no_web"):
        load(no_web=True, web="127.0.0.1:0")
