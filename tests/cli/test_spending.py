"""What updates have cost in privacy is shown wherever a run is."""

import json
from pathlib import Path

import pytest

from fedagent_cli.read import runs
from fedagent_cli.report.run_report import read_run_report
from fedagent_task.privacy.accountant import epsilon_spent
from fedagent_task.recipe.spec import PrivacySpec
from fedagent_task.recipe.text import parse_recipe
from tests.typed import fedagent
from tests.world.kinds import RECIPE, world

SETS = ("privacy.mode=central", "rounds.weighting=uniform", "rounds.min_updates=1")
pytest.importorskip("opendp", reason="opendp is not installed")


def test_status_devices_and_report_tell_the_epsilon_spent(tmp_path: Path) -> None:
    here = world("plain", tmp_path, 0, *SETS, "privacy.releases=4")
    here.run(seconds=900)
    where = ("--data-dir", str(here.coordinator.directory))
    full = epsilon_spent(PrivacySpec(mode="central", releases=4), 4)
    told = json.loads(fedagent("devices", *where, "--json").stdout)["devices"]
    assert [one["released"] for one in told] == [4] * len(here.agents)
    assert [one["epsilon"] for one in told] == [pytest.approx(full)] * len(here.agents)
    status = fedagent("status", *where).stdout
    assert "privacy   a device has spent at most epsilon 8 of 8" in status
    facts = read_run_report(here.coordinator.directory).facts
    assert facts["epsilon of a device, at most"] == "8 of 8"


def test_without_the_accountant_updates_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = parse_recipe(RECIPE, (*SETS, "privacy.releases=4"))
    monkeypatch.setattr(runs, "find_spec", lambda _: None)
    assert runs.epsilon_text(recipe, 3) == "3 of 4 updates"
    assert runs.epsilon_of(recipe, 3) is None
