"""Settings: JSON, environment, and one line that names the key when something is wrong."""

from pathlib import Path

import pytest

from fedagent_edge.config import load
from fedagent_node.settings import SettingError


def test_json_and_environment_together() -> None:
    config = load('{"data_dir": "/x", "chunk_bytes": 65536}', {"FEDAGENT_EDGE_SITE": "barn"})
    assert (config.data_dir, config.chunk_bytes, config.site) == ("/x", 65536, "barn")
    assert config.credit_bytes == 4 << 20


def test_a_toml_file(tmp_path: Path) -> None:
    path = tmp_path / "edge.toml"
    path.write_text('data_dir = "/x"\nbroker = "mqtt://broker.local"\ninsecure = true\n')
    assert load(str(path), {}).broker == "mqtt://broker.local"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("{}", "data_dir"),
        ('{"data_dir": "/x", "borker": "auto"}', "borker"),
        ('{"data_dir": "/x", "site": "Not A Site"}', "site"),
        ('{"data_dir": "/x", "broker": "::::"}', "broker"),
        ('{"data_dir": "/x", "broker": "mqtts://b:1"}', "broker"),
        ('{"data_dir": "/x", "broker": "mqtt://192.168.1.10:1883"}', "broker"),
        ('{"data_dir": "/x", "coordinator": "nowhere"}', "coordinator"),
        ('{"data_dir": "/x", "coordinator": "192.168.1.10:1884"}', "coordinator"),
        ('{"data_dir": "/x", "listen": "[::1"}', "listen"),
        ('{"data_dir": "/x", "chunk_bytes": 1}', "chunk_bytes"),
        ('{"data_dir": "/x", "port": 70000}', "port"),
        ('{"data_dir": "/x", "rent": 1e-7}', "rent"),
        ("{", "config"),
    ],
)
def test_errors_name_the_key_in_one_line(text: str, key: str) -> None:
    with pytest.raises(SettingError) as caught:
        load(text, {})
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


def test_an_address_to_listen_on_may_come_in_brackets() -> None:
    assert load('{"data_dir": "/x", "listen": "[::1]"}', {}).listen == "::1"
