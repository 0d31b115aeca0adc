"""`fedagent status` beside a coordinator that runs."""

from pathlib import Path

from fedagent_testbed.local import RoleProcess
from tests.fakes.written_runs import RECIPE
from tests.typed import call, last_object


def test_status_of_a_run_that_waits_says_for_what_and_who_is_there(tmp_path: Path) -> None:
    """A coordinator without agents: known and live edges, and the reason, before any round."""
    recipe = tmp_path / "toy.toml"
    recipe.write_text(RECIPE)
    config = {
        "data_dir": str(tmp_path / "coordinator"),
        "recipe": str(recipe),
        "broker": "embedded",
        "discovery": "off",
        "json_events": True,
        "watch_parent": True,
    }
    coordinator = RoleProcess(name="c", role="coordinator", config=config, log=tmp_path / "c.log")
    try:
        coordinator.wait("waiting", timeout_s=30.0)
        read = last_object(call(tmp_path, "status", "--json"))
        assert (read["running"], read["waiting"]) == (True, "edges")
        assert (read["edges"], read["edges_live"]) == (0, 0)
        assert "waiting   for edges: 0 of 1" in call(tmp_path, "status").stdout
    finally:
        coordinator.stop()
    read = last_object(call(tmp_path, "status", "--json"))
    assert (read["running"], read["waiting"], read["edges_live"]) == (False, None, None)
