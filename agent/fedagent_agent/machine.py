"""One look at this machine: processors, memory, power, heat. Measured, never simulated."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from .availability import Condition, Power

SYSFS = Path("/sys")
_PI_THROTTLED = Path("devices/platform/soc/soc:firmware/get_throttled")
_PI_FLAGS = {
    1: "the supply voltage is too low",
    2: "the clock is capped",
    4: "it is throttled",
    8: "it is at its soft temperature limit",
}
_ABOUT_THE_CPU = ("cpu", "soc", "pkg", "core", "gpu")
_CHARGED_BY = frozenset({"mains", "usb", "wireless"})


@dataclass
class MachineProbe:
    """This machine, through psutil and sysfs; `child` is the process that works for this one."""

    _sysfs: Path = SYSFS
    child: Callable[[], int | None] = lambda: None

    def cores(self) -> int:
        """Return the number of processors that may be used."""
        try:
            return len(os.sched_getaffinity(0))
        except AttributeError:  # not Linux
            return os.cpu_count() or 1

    def sample(self) -> Condition:
        """Look at the machine."""
        return Condition(
            busy_s=_busy_seconds(),
            own_s=self._own_seconds(),
            memory_bytes=psutil.virtual_memory().available,
            frequency=_frequency(),
            power=power(self._sysfs),
            temperature_c=temperature_c(),
            throttled=throttled(self._sysfs),
        )

    def _own_seconds(self) -> float:
        """Return what this process used, its children that ended, and the one at work."""
        times = os.times()
        total = times.user + times.system + times.children_user + times.children_system
        if (pid := self.child()) is not None:
            # One that has ended meanwhile counts with the children's times.
            with suppress(psutil.Error):
                own = psutil.Process(pid).cpu_times()
                total += own.user + own.system
        return total


def power(sysfs: Path = SYSFS) -> Power | None:
    """Return battery and mains; None where they cannot be known."""
    supplies = sysfs / "class" / "power_supply"
    charges: list[float] = []
    fed = discharging = False
    try:
        for supply in supplies.iterdir():
            kind = _text(supply / "type").lower()
            if kind == "battery" and _text(supply / "scope").lower() != "device":
                if (charge := _number(supply / "capacity")) is not None:
                    charges.append(min(1.0, max(0.0, charge / 100)))
                discharging |= _text(supply / "status").lower() == "discharging"
            elif kind in _CHARGED_BY:
                fed |= _text(supply / "online") == "1"
    except OSError:
        return None
    if not charges:
        return Power()
    return Power(battery=min(charges), mains=fed or not discharging)


def temperature_c() -> float | None:
    """Return the temperature of the hottest sensor; of those about the processor, if any."""
    hot: dict[bool, list[float]] = {True: [], False: []}
    found = _psutil("sensors_temperatures")
    for kind, entries in found.items() if isinstance(found, dict) else ():
        about = any(word in kind.lower() for word in _ABOUT_THE_CPU)
        # Those that are switched off say things like -274.
        hot[about] += [one.current for one in entries if 0 < (one.current or 0) < 150]
    return max(hot[True] or hot[False], default=None)


def throttled(sysfs: Path = SYSFS) -> str | None:
    """Return why a Raspberry Pi slows itself down now; None on other machines."""
    text = _text(sysfs / _PI_THROTTLED)
    try:
        flags = int(text, 16)
    except ValueError:
        return None
    return ", ".join(words for bit, words in _PI_FLAGS.items() if flags & bit)


def _busy_seconds() -> float | None:
    try:
        times = psutil.cpu_times()
    except (OSError, psutil.Error):
        return None  # Android keeps /proc/stat to itself
    idle = times.idle + getattr(times, "iowait", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return float(sum(times) - idle - guests)


def _psutil(name: str) -> object:
    try:
        found: object = getattr(psutil, name)()
    except (AttributeError, OSError, NotImplementedError, RuntimeError):
        return None  # another system, or one that hides it
    return found


def _frequency() -> float:
    found = _psutil("cpu_freq")
    current, highest = getattr(found, "current", 0.0), getattr(found, "max", 0.0)
    return min(1.0, current / highest) if current and highest else 1.0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> float | None:
    try:
        return float(_text(path))
    except ValueError:
        return None
