"""Settings are read once; what is wrong is named with its hint."""

from pathlib import Path

import pytest

from fedagent_coordinator.config import load
from fedagent_node.settings import SettingError

MINIMAL = '{"data_dir": "/d", "recipe": "r.toml"}'


def test_defaults_and_overrides() -> None:
    config = load(MINIMAL, {})
    assert (config.broker, config.wait_edges) == ("auto", 1)
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
        ('{"data_dir": "d", "recipe": "r", "broker": "mqtts://h:1"}', "broker"),
        ('{"data_dir": "d", "recipe": "r", "broker": "mqtt://h:1"}', "broker"),
        ('{"data_dir": "d", "recipe": "r", "port": 70000}', "port"),
        ('{"data_dir": "d", "recipe": "r", "listen": "127.0.0.1:1883"}', "listen"),
        ('{"data_dir": "d", "recipe": "r", "tls": {"ca": "x"}}', "tls"),
        ('{"data_dir": "d", "recipe": "r", "new_run": true, "more_rounds": 3}', "more_rounds"),
        ('{"data_dir": "d", "recipe": "r", "more_rounds": -1}', "more_rounds"),
        ("{", "config"),
        ("/nowhere/c.json", "config"),
    ],
)
def test_one_line_names_the_key(text: str, key: str) -> None:
    with pytest.raises(SettingError) as caught:
        load(text, {})
    assert caught.value.key.startswith(key)
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    assert "docs/coordinator.md" not in str(caught.value)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("key", ["grace_s", "linger_s"])
def test_a_number_that_is_none_is_refused_wherever_it_comes_from(
    tmp_path: Path, key: str, number: str
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f'data_dir = "d"\nrecipe = "r"\n{key} = {number}\n')
    variable = f"FEDAGENT_COORDINATOR_{key.upper()}"
    for text, environment in ((str(file), {}), (MINIMAL, {variable: number})):
        with pytest.raises(SettingError) as caught:
            load(text, environment)
        assert caught.value.key == key


@pytest.mark.parametrize(
    ("listen", "host"), [("[::1]", "::1"), ("::1", "::1"), ("[::]", "::"), ("0.0.0.0", "0.0.0.0")]
)
def test_an_address_to_listen_on_may_come_in_brackets(listen: str, host: str) -> None:
    config = load(f'{{"data_dir": "d", "recipe": "r", "listen": "{listen}"}}', {})
    assert config.listen == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "localhost", "[::1]"])
def test_plain_text_is_fine_on_this_machine_and_elsewhere_if_allowed(host: str) -> None:
    load(f'{{"data_dir": "d", "recipe": "r", "broker": "mqtt://{host}:1"}}', {})
    load('{"data_dir": "d", "recipe": "r", "broker": "mqtt://h:1", "insecure": true}', {})
