"""What the Wi-Fi driver says of this device's link: signal, rate, width of the channel.

``python -m fedagent_agent.wifi`` asks it, where its library (the extra `wifi`) is installed, and
prints every interface as JSON: the library takes 25 MB, which an agent does not keep.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import msgspec

from .core.device import Radio

SYSFS = Path("/sys")
PROC = Path("/proc")
LIBRARY = "pyroute2"
_WIDTHS_HZ = (20e6, 20e6, 40e6, 80e6, 160e6, 160e6, 5e6, 10e6, 1e6, 2e6, 4e6, 8e6, 16e6, 320e6)
"""By `enum nl80211_chan_width` of linux/nl80211.h; 80+80 MHz is 160."""
_NAME = "NL80211_ATTR_IFNAME"
_RATE_BPS = 100_000.0
"""Rates are in units of 100 kbit/s."""
_LARGEST = 1e10
"""No level and no rate, in its unit, is a larger number; what a report holds is finite."""
_UP = 0x1


def interfaces(sysfs: Path = SYSFS) -> tuple[str, ...]:
    """Return the Wi-Fi interfaces of this device."""
    found = (sysfs / "class" / "net").glob("*/phy80211")
    return tuple(sorted(path.parent.name for path in found))


def _attr(message: object, name: str) -> object:
    """Return an attribute of a netlink message as the library decodes it; None without one."""
    get = getattr(message, "get_attr", None)
    return get(name) if get is not None else None


def radios_of(wireless: Any, refused: type[Exception]) -> list[Radio]:
    """Return every interface of the library's connection to the driver.

    One whose driver refuses to name its stations has none.
    """

    def stations(device: object) -> list[object]:
        try:
            return list(wireless.get_stations(_attr(device, "NL80211_ATTR_IFINDEX")))
        except refused:
            return []

    named = [one for one in wireless.get_interfaces_dump() if _attr(one, _NAME)]
    return [radio_of(device, stations(device)) for device in named]


def radio_of(interface: object, stations: Iterable[object]) -> Radio:
    """Return an interface with the station that it is joined to, the best heard of several."""
    best = Radio(
        interface=str(_attr(interface, _NAME)),
        bandwidth_hz=_width_hz(_attr(interface, "NL80211_ATTR_CHANNEL_WIDTH")),
    )
    for station in stations:
        info = _attr(station, "NL80211_ATTR_STA_INFO")
        signal = _number(_attr(info, "NL80211_STA_INFO_SIGNAL_AVG"))
        signal = _number(_attr(info, "NL80211_STA_INFO_SIGNAL")) if signal is None else signal
        if best.signal_dbm is None or (signal is not None and signal > best.signal_dbm):
            rate = _rate_bps(_attr(info, "NL80211_STA_INFO_TX_BITRATE"))
            best = msgspec.structs.replace(best, signal_dbm=signal, link_bps=rate)
    return best


def _rate_bps(rate: object) -> float | None:
    for name in ("NL80211_RATE_INFO_BITRATE32", "NL80211_RATE_INFO_BITRATE"):
        if found := _number(_attr(rate, name)):
            return found * _RATE_BPS
    return None


def _width_hz(number: object) -> float | None:
    known = isinstance(number, int) and 0 <= number < len(_WIDTHS_HZ)
    return _WIDTHS_HZ[cast("int", number)] if known else None


def _number(value: object) -> float | None:
    known = isinstance(value, int | float) and abs(value) < _LARGEST  # NaN is not
    return float(cast("float", value)) if known else None


def default_interface(routes: str) -> str:
    """Return the interface of the default route, of /proc/net/route; empty if there is none."""
    best: tuple[int, str] | None = None
    for line in routes.splitlines()[1:]:
        words = line.split()
        try:
            destination, flags, metric = int(words[1], 16), int(words[3], 16), int(words[6])
        except (ValueError, IndexError):
            continue
        if destination == 0 and flags & _UP and (best is None or metric < best[0]):
            best = metric, words[0]
    return best[1] if best is not None else ""


def in_use(radios: Iterable[Radio], routes: str) -> Radio | None:
    """Return the radio that this device's traffic goes through; None where it is a cable.

    Without a default route that is the only one with a signal, if it is the only one.
    """
    joined = {radio.interface: radio for radio in radios if radio.signal_dbm is not None}
    if name := default_interface(routes):
        return joined.get(name)
    return next(iter(joined.values())) if len(joined) == 1 else None


def decode_radios(text: str) -> tuple[Radio, ...]:
    """Return what this module printed; nothing of anything else."""
    try:
        return msgspec.json.decode(text.encode(), type=tuple[Radio, ...])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return ()


def read_text(path: Path) -> str:
    """Return a small file of the system; empty where it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    from pyroute2.iwutil import IW
    from pyroute2.netlink.exceptions import NetlinkError

    with IW() as wireless:
        radios = radios_of(wireless, NetlinkError)
    sys.stdout.write(msgspec.json.encode(radios).decode() + "\n")
