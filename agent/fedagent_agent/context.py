"""Readings of the device: free compute and availability.

Besides looks at the machine come programs that alone know whether the link is metered
(NetworkManager) and what a phone's charge is (Termux:API). They are asked rarely, nothing waits
for them, and their absence is no error.
"""

import asyncio
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE
from dataclasses import dataclass, field, replace
from importlib.util import find_spec

import msgspec

from .availability import Condition, LimitCheck, LimitsSettings, Power, check_limits
from .core.device import Radio, Readings
from .machine import MachineProbe
from .wifi import LIBRARY, PROC, decode_radios, in_use, interfaces, read_text

MEMORY_S = 30.0
"""Time constant of the smoothed load: prices and policies need a steady number."""


ASK_S = 60.0
PATIENCE_S = 10.0
_MAX_BYTES = 64 * 1024
_CONNECTED = "100"
WIFI = "fedagent_agent.wifi"
"""Asks for the radio in a process of its own."""


@dataclass(frozen=True, slots=True)
class HostInfo:
    """What programs know; None where there is none, or it did not answer."""

    metered: bool | None = None
    power: Power | None = None
    radio: Radio | None = None  # of the Wi-Fi that is in use


class _Battery(msgspec.Struct):
    """What ``termux-battery-status`` prints, as far as it matters here."""

    percentage: float
    plugged: str = "UNPLUGGED"


async def ask_host(path: str | None = None) -> HostInfo:
    """Ask each program once that is on the search path; none of them is waited for long."""
    metered = power = radio = None
    if (nmcli := shutil.which("nmcli", path=path)) is not None:
        fields = "GENERAL.TYPE,GENERAL.STATE,GENERAL.METERED"
        metered = metered_of(await _output(nmcli, "-t", "-f", fields, "dev", "show"))
    if (battery := shutil.which("termux-battery-status", path=path)) is not None:
        power = power_of(await _output(battery))
    if interfaces() and find_spec(LIBRARY) is not None:
        text = await _output(sys.executable, "-P", "-m", WIFI)
        radio = in_use(decode_radios(text), read_text(PROC / "net" / "route"))
    return HostInfo(metered, power, radio)


def metered_of(text: str) -> bool | None:
    """Return from nmcli's lines whether every connected device is metered, also by its guess."""
    said: list[bool] = []
    kind = state = ""
    for line in text.splitlines():
        key, _, value = line.strip().partition(":")
        match key:
            case "GENERAL.TYPE":
                kind, state = value, ""
            case "GENERAL.STATE":
                state = value.partition(" ")[0]
            case "GENERAL.METERED" if state == _CONNECTED and kind != "loopback":
                word = value.partition(" ")[0]
                said += [word == "yes"] if word in ("yes", "no") else []
    return all(said) if said else None


def power_of(text: str) -> Power | None:
    """Read what ``termux-battery-status`` printed; None if it is not that."""
    try:
        found = msgspec.json.decode(text.encode(), type=_Battery)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    charge = min(1.0, max(0.0, found.percentage / 100))
    return Power(battery=charge, mains=found.plugged.upper() != "UNPLUGGED")


async def _output(*command: str) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL
        )
    except OSError:
        return ""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            data = await process.stdout.read(_MAX_BYTES)
            while data and (more := await process.stdout.read(_MAX_BYTES)):
                data = (data + more)[:_MAX_BYTES]
            await process.wait()
    except TimeoutError:
        data = b""
    finally:
        if process.returncode is None:
            # Kills it, and lets go of a pipe that what it has started may hold for ever.
            process._transport.close()  # type: ignore[attr-defined] # noqa: SLF001
            await process.wait()
    return data.decode("utf-8", "replace")


@dataclass(slots=True)
class Context:
    """Available compute and availability, from samples some seconds apart.

    Available compute y is in cores: those that this process may use, times the clock's share of its
    maximum, times the share that others leave idle. The agent's own use counts as available.
    """

    _probe: MachineProbe = field(default_factory=MachineProbe)
    limits: LimitsSettings = field(default_factory=LimitsSettings)
    host: HostInfo = HostInfo()  # what other programs say
    _held: frozenset[str] = frozenset()
    _last: tuple[float, Condition] | None = None
    _idle: float | None = None

    def read(self, now: float) -> Readings:
        """Look at the machine; `now` is monotonic."""
        condition, checks = self._look(now)
        objections = [check for check in checks if check.objects]
        self._held = frozenset(check.rule for check in objections)
        idle = 1.0 if self._idle is None else self._idle
        return Readings(
            compute=round(self._probe.cores() * min(1.0, condition.frequency) * idle, 3),
            available=not objections,
            reason=objections[0].text if objections else "",
            battery=condition.power.battery if condition.power is not None else None,
            temperature_c=condition.temperature_c,
            radio=self.host.radio,
        )

    def check_limits(self, now: float) -> list[LimitCheck]:
        """Return what every rule makes of the device."""
        return self._look(now)[1]

    def _look(self, now: float) -> tuple[Condition, list[LimitCheck]]:
        sample = self._probe.sample()
        self._note_load(sample, now)
        host = self.host
        condition = replace(
            sample,
            power=sample.power if host.power is None else host.power,
            metered=host.metered,
            load=None if self._idle is None else 1.0 - self._idle,
        )
        return condition, check_limits(condition, self.limits, self._held)

    def _note_load(self, sample: Condition, now: float) -> None:
        last = self._last
        if last is not None and now - last[0] < 0.1:
            return
        self._last = now, sample
        if last is None or sample.busy_s is None or last[1].busy_s is None:
            return
        seconds = now - last[0]
        others = (sample.busy_s - last[1].busy_s) - (sample.own_s - last[1].own_s)
        idle = 1.0 - min(1.0, max(0.0, others / (seconds * self._probe.cores())))
        weight = min(1.0, seconds / MEMORY_S)
        self._idle = idle if self._idle is None else self._idle + weight * (idle - self._idle)
