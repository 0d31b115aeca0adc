"""Settings that cannot work are refused before anything starts."""

import json

import pytest

from fedagent_agent.config import load
from fedagent_protocol.transport.settings import SettingError


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
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_its_key(
    change: dict[str, object], key: str
) -> None:
    given = {"data_dir": "here", "stream": "digits", **change}
    with pytest.raises(SettingError) as caught:
        load(json.dumps(given), environment={})
    assert caught.value.key == key
    assert caught.value.mend
