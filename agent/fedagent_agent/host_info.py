"""What only other programs know of the device: is the link metered, what is a phone's charge.

NetworkManager is asked through ``nmcli``, Android through Termux:API. They are asked
rarely, never waited for by anything else, and their absence is no error.
"""

import asyncio
import shutil
from asyncio.subprocess import DEVNULL, PIPE
from dataclasses import dataclass

import msgspec

from .availability import Power

ASK_S = 60.0
"""Seconds between two askings."""
PATIENCE_S = 10.0
_MAX_BYTES = 64 * 1024
_CONNECTED = "100"


@dataclass(frozen=True, slots=True)
class HostInfo:
    """What the programs told; None where there is none, or it did not say."""

    metered: bool | None = None
    power: Power | None = None


class _Battery(msgspec.Struct):
    """What ``termux-battery-status`` prints, as far as it matters here."""

    percentage: float
    plugged: str = "UNPLUGGED"


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the programs are; None for those that are not here."""

    nmcli: str | None = None
    battery: str | None = None

    @classmethod
    def here(cls, path: str | None = None) -> "Programs":
        """Find them on the search path."""
        return cls(
            shutil.which("nmcli", path=path), shutil.which("termux-battery-status", path=path)
        )

    def __bool__(self) -> bool:
        return self.nmcli is not None or self.battery is not None

    async def ask(self) -> HostInfo:
        """Ask each of them once."""
        metered = power = None
        if self.nmcli is not None:
            fields = "GENERAL.TYPE,GENERAL.STATE,GENERAL.METERED"
            text = await _output(self.nmcli, "-t", "-f", fields, "dev", "show")
            metered = metered_of(text)
        if self.battery is not None:
            power = power_of(await _output(self.battery))
        return HostInfo(metered, power)


def metered_of(text: str) -> bool | None:
    """Tell from nmcli's lines whether every connected device is metered; None if it is not said.

    NetworkManager guesses where nobody has configured it: ``yes (guessed)``.
    """
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
    """Return what a program prints within `PATIENCE_S`; nothing if it fails."""
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
            process.kill()
            await process.wait()
    return data.decode("utf-8", "replace")
