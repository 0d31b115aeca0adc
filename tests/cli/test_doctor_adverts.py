"""What the doctor says of those who are announced."""

import pytest

from fedagent_cli.adverts import Seen
from fedagent_cli.checks import Level, of_adverts
from fedagent_node.address import BrokerAddress
from fedagent_node.advert import Advert


def seen(**refused: str) -> Seen:
    advert = Advert("coordinator", "aa", "default", BrokerAddress("10.0.0.1", 1), 1)
    return Seen(advert, {f"{place}:1": reason for place, reason in refused.items()})


@pytest.mark.parametrize(
    ("one", "level"),
    [
        (seen(lan=""), Level.OK),
        (seen(lan="", other_card="Network is unreachable"), Level.OK),
        (seen(lan="Connection refused", other_card="Network is unreachable"), Level.WARN),
    ],
)
def test_one_address_that_answers_is_enough(one: Seen, level: Level) -> None:
    finding = of_adverts([one])
    assert finding.level is level
    assert ("unreachable" in finding.text) is (level is Level.WARN)
