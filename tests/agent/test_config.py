"""Settings of an agent that cannot work are refused before anything starts."""

import json

import pytest

from fedagent_agent.config import AgentConfig
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
