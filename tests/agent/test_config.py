"""Settings of an agent that cannot work are refused before anything starts."""

import json

import pytest

from fedagent_agent.config import AgentConfig
from fedagent_agent.core.device import PriceSettings
from fedagent_agent.core.opinions import PrivacySettings
from fedagent_node.settings import SettingError


def load(**change: object) -> AgentConfig:
    return AgentConfig.load(json.dumps({"data_dir": "here", "stream": "digits", **change}), {})


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"stream": None}, "stream"),
        ({"stream": "bogus:1"}, "stream"),
        ({"stream": "digits:rate=fast"}, "rate"),
        ({"stream": "mqtt://192.168.1.20/t?features=a&label=y"}, "mqtt"),
        ({"edges": ["nowhere"]}, "edges"),
        ({"broker": "auto"}, "broker"),
        ({"slow_s": -1}, "slow_s"),
        ({"held_out": "bogus:1"}, "held_out"),
        ({"held_out": "digits"}, "held_out"),
        ({"peers": ["A!"]}, "peers"),
        ({"position": [1e9, 0]}, "position"),
        ({"privacy": {"max_epsilon": -1}}, "privacy.max_epsilon"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_its_key(
    change: dict[str, object], key: str
) -> None:
    with pytest.raises(SettingError) as caught:
        load(**change)
    assert caught.value.key == key
    assert caught.value.hint


def test_work_has_the_documented_price() -> None:
    assert load().price == PriceSettings(base=0.1, per_compute=0.2)
    assert load(price={"base": 0}).price == PriceSettings(base=0, per_compute=0.2)


def test_the_owner_grants_anything_unless_a_limit_is_set() -> None:
    assert load().privacy == PrivacySettings()
    asked = {"total_epsilon": 0, "lifetime_epsilon": 5, "declared_only": True}
    assert load(privacy=asked).privacy == PrivacySettings(
        total_epsilon=0.0, lifetime_epsilon=5.0, declared_only=True
    )
