"""Settings are read once, from a file and the environment; what is wrong is named with its hint."""

import json
from pathlib import Path

import pytest

from fedagent_coordinator.config import CoordinatorConfig
from fedagent_edge.config import EdgeConfig
from fedagent_node.settings import SettingError


def edge(**given: object) -> EdgeConfig:
    return EdgeConfig.load(json.dumps({"data_dir": "/x", **given}), {})


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_file_wins_over_the_environment(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text('data_dir = "d"\nrecipe = "r"\nwait_agents = 3\n', encoding)
    variables = {"SITE": "lab", "PORT": "9", "WAIT_AGENTS": "7"}
    environment = {f"FEDAGENT_COORDINATOR_{name}": value for name, value in variables.items()}
    config = CoordinatorConfig.load(str(file), {**environment, "FEDAGENT_EDGE_LISTEN": "::1"})
    assert (config.wait_agents, config.site, config.port) == (3, "lab", 9)
    assert config.listen == "127.0.0.1"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"data_dir": None}, "data_dir"),
        ({"borker": "auto"}, "borker"),
        ({"site": "Not A Site"}, "site"),
        ({"broker": "mqtts://b:1"}, "broker"),
        ({"coordinator": "nowhere"}, "coordinator"),
        ({"listen": "[::1"}, "listen"),
        ({"listen": "127.0.0.1:1883"}, "listen"),
        ({"chunk_bytes": 1}, "chunk_bytes"),
        ({"port": 70000}, "port"),
        ({"metrics": "kitchen"}, "metrics"),
        ({"metrics": "10.0.0.2:9100"}, "metrics"),
        ({"rent": 1e-7}, "rent"),
        ({"tls": {"ca": "x"}}, "tls"),
        ({"tls": {"ca": "x", "cert": "y", "key": "z"}, "broker": "mqtt://127.0.0.1:1"}, "broker"),
    ],
)
def test_one_line_names_the_key(change: dict[str, object], key: str) -> None:
    with pytest.raises(SettingError) as caught:
        edge(**change)
    assert caught.value.key.startswith(key)
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    assert "valid value" not in caught.value.hint


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "config: is neither TOML nor a JSON object"),
        ("/nowhere/c.json", "config: cannot read"),
        ('{"data_dir": "d\\udcff"}', "config: has a path that is not UTF-8; rename it"),
    ],
)
def test_what_cannot_be_read_is_the_configuration(text: str, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        EdgeConfig.load(text, {})


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_a_number_that_is_none_is_refused_wherever_it_comes_from(
    tmp_path: Path, number: str
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f'data_dir = "d"\nrent = {number}\n')
    for text, environment in (
        (str(file), {}),
        ('{"data_dir": "d"}', {"FEDAGENT_EDGE_RENT": number}),
    ):
        with pytest.raises(SettingError) as caught:
            EdgeConfig.load(text, environment)
        assert caught.value.key == "rent"
