"""Settings that cannot work are refused before anything starts."""

import json

import pytest

from fedagent_agent.config import load
from fedagent_agent.core.device import PriceSettings
from fedagent_agent.core.opinions import PrivacySettings
from fedagent_node.settings import SettingError


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"stream": "bogus:1"}, "stream"),
        ({"stream": "digits:rate=fast"}, "rate"),
        ({"site": "../x"}, "site"),
        ({"edges": ["nowhere"]}, "edges"),
        ({"broker": "mqtts://host:8883"}, "broker"),
        ({"edges": ["192.168.1.20:1883"]}, "edges"),
        ({"broker": "mqtt://192.168.1.20"}, "broker"),
        ({"strem": "digits"}, "strem"),
        ({"slow_s": -1}, "slow_s"),
        ({"price": {"base": -1}}, "price.base"),
        ({"tls": {"ca": "x", "cert": "y", "key": "z"}, "edges": ["127.0.0.1:1"]}, "edges"),
        ({"held_out": "bogus:1"}, "held_out"),
        ({"held_out": "digits"}, "held_out"),
        ({"privacy": {"max_epsilon": -1}}, "privacy.max_epsilon"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_its_key(
    change: dict[str, object], key: str
) -> None:
    given = {"data_dir": "here", "stream": "digits", **change}
    with pytest.raises(SettingError) as caught:
        load(json.dumps(given), environment={})
    assert caught.value.key == key
    assert caught.value.hint


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"care": {"mains_only": True}}, "write limits"),
        ({"limits": {"least_battery": 20}}, "write min_battery"),
        ({"privacy": {"most_epsilon": 1}}, "write max_epsilon"),
    ],
)
def test_a_key_of_an_earlier_release_is_refused_with_its_new_name(
    change: dict[str, object], hint: str
) -> None:
    given = {"data_dir": "here", "stream": "digits", **change}
    with pytest.raises(SettingError) as caught:
        load(json.dumps(given), environment={})
    assert caught.value.hint == hint
    with pytest.raises(SettingError, match="write limits"):
        load(json.dumps({"data_dir": "x", "stream": "digits"}), {"FEDAGENT_AGENT_CARE": "{}"})


def test_work_has_the_documented_price() -> None:
    config = load('{"data_dir": "d", "stream": "digits"}', environment={})
    assert config.price == PriceSettings(base=0.1, per_compute=0.2)
    config = load('{"data_dir": "d", "stream": "digits", "price": {"base": 0}}', environment={})
    assert config.price == PriceSettings(base=0, per_compute=0.2)


def test_the_owner_grants_anything_unless_a_limit_is_set() -> None:
    config = load('{"data_dir": "d", "stream": "digits"}', environment={})
    assert config.privacy == PrivacySettings()
    given = '{"data_dir": "d", "stream": "digits", "privacy": {"total_epsilon": 0}}'
    assert load(given, environment={}).privacy == PrivacySettings(total_epsilon=0.0)
    more = given.replace('"total_epsilon": 0', '"lifetime_epsilon": 5, "declared_only": true')
    assert load(more, environment={}).privacy == PrivacySettings(
        lifetime_epsilon=5.0, declared_only=True
    )


def test_settings_come_from_json_and_environment() -> None:
    config = load('{"stream": "digits"}', {"FEDAGENT_AGENT_DATA_DIR": "/x", "OTHER": "1"})
    assert (config.data_dir, config.stream, config.site) == ("/x", "digits", "default")
    for text, key in (
        ('{"data_dir": "x", "stream": "s", "broker": "auto"}', "broker"),
        ('{"data_dir": "x"}', "stream"),
    ):
        with pytest.raises(SettingError, match=key):
            load(text, {})
