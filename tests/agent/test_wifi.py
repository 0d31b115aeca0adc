"""The Wi-Fi as its driver tells it, from recorded words and bytes; none, broken, and old ones."""

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from fedagent_agent.core.device import Radio
from fedagent_agent.wifi import (
    decode_radios,
    default_interface,
    in_use,
    interfaces,
    radio_of,
)

ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0
eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
wlan0\t0001A8C0\t00000000\t0001\t0\t0\t600\t00FFFFFF\t0\t0\t0
"""


class Said(dict[str, object]):
    """Attributes of a message, as the library gives them."""

    def get_attr(self, attr: str, /) -> object:
        return self.get(attr)


def station(info: Mapping[str, object]) -> Said:
    rate = info.get("TX_BITRATE")
    named = {f"NL80211_STA_INFO_{name}": value for name, value in info.items()}
    if isinstance(rate, dict):
        rates = Said({f"NL80211_RATE_INFO_{name}": value for name, value in rate.items()})
        named["NL80211_STA_INFO_TX_BITRATE"] = rates
    return Said({"NL80211_ATTR_STA_INFO": Said(named)})


@pytest.mark.parametrize(
    ("width", "info", "expected"),
    [
        (
            3,
            {"SIGNAL": -60, "SIGNAL_AVG": -57, "TX_BITRATE": {"BITRATE": 65535, "BITRATE32": 8667}},
            (-57.0, 866.7e6, 80e6),
        ),
        (0, {"SIGNAL": -71, "TX_BITRATE": {"BITRATE": 722}}, (-71.0, 72.2e6, 20e6)),
        (99, {}, (None, None, None)),
        (None, {"SIGNAL": "loud", "TX_BITRATE": 7}, (None, None, None)),
        (2, {"SIGNAL": math.nan, "TX_BITRATE": {"BITRATE32": math.inf}}, (None, None, 40e6)),
        (-1, {"SIGNAL": -(10**400), "TX_BITRATE": {"BITRATE": 10**400}}, (None, None, None)),
    ],
)
def test_a_station_is_signal_rate_and_width(
    width: int | None, info: dict[str, object], expected: tuple[float | None, ...]
) -> None:
    device = Said({"NL80211_ATTR_IFNAME": "wlan0", "NL80211_ATTR_CHANNEL_WIDTH": width})
    radio = radio_of(device, [station(info)])
    assert (radio.signal_dbm, radio.link_bps, radio.bandwidth_hz) == expected


def test_the_radio_counts_only_where_traffic_goes_through_it() -> None:
    wlan, other = (Radio(interface=name, signal_dbm=-50) for name in ("wlan0", "wlan1"))
    assert default_interface(ROUTES) == "eth0"
    assert in_use([wlan], ROUTES) is None
    by_air = ROUTES.replace("eth0", "wlan1")
    assert in_use([wlan, other], by_air) == other
    no_route = ROUTES.splitlines()[0]
    assert in_use([wlan, Radio(interface="wlan1")], no_route) == wlan
    assert in_use([wlan, other], no_route) is None
    assert default_interface("Iface\nwlan0 zz\n") == ""


def test_a_device_without_wifi_or_permission_reports_none(tmp_path: Path) -> None:
    assert interfaces(tmp_path) == ()
    (tmp_path / "class" / "net" / "wlan0" / "phy80211").mkdir(parents=True)
    (tmp_path / "class" / "net" / "eth0").mkdir()
    assert interfaces(tmp_path) == ("wlan0",)
    assert decode_radios("Traceback (most recent call last)") == ()
