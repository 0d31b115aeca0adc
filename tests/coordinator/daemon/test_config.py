"""Settings are read once; what is wrong is named with its mend."""

from pathlib import Path

import pytest

from fedagent_coordinator.config import ConfigError, load

MINIMAL = '{"data_dir": "/d", "recipe": "r.toml"}'


def test_defaults_and_overrides() -> None:
    config = load(MINIMAL, {})
    assert (config.broker, config.wait_edges, config.broker_address) == ("auto", 1, None)
    config = load('{"data_dir":"d","recipe":"r","policy":"cheapest","seed":4,"sets":["a.b=1"]}', {})
    assert config.recipe_sets == ("a.b=1", "policy.name=cheapest", "seed=4")


def test_files_and_environment(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('data_dir = "d"\nrecipe = "r"\nwait_agents = 3\n')
    config = load(str(file), {"FEDAGENT_COORDINATOR_SITE": "lab", "FEDAGENT_COORDINATOR_PORT": "9"})
    assert (config.wait_agents, config.site, config.port) == (3, "lab", 9)
    assert load(str(file), {"FEDAGENT_COORDINATOR_WAIT_AGENTS": "7"}).wait_agents == 3


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"data_dir": "d"}', "recipe"),
        ('{"data_dir": "d", "recipe": "r", "colour": 1}', "colour"),
        ('{"data_dir": "d", "recipe": "r", "wait_edges": 0}', "wait_edges"),
        ('{"data_dir": "d", "recipe": "r", "site": "A B"}', "site"),
        ('{"data_dir": "d", "recipe": "r", "broker": "what?"}', "broker"),
        ('{"data_dir": "d", "recipe": "r", "broker": "mqtts://h:1"}', "tls"),
        ('{"data_dir": "d", "recipe": "r", "tls": {"ca": "x"}}', "tls"),
        ("{", "config"),
        ("/nowhere/c.json", "config"),
    ],
)
def test_one_line_names_the_key(text: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text, {})
    assert caught.value.key.startswith(key)
    assert "\n" not in str(caught.value)
