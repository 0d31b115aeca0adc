"""When a device trains: one rule per thing that its owner may mind. No I/O.

A rule that objects goes on until the reading is better than its limit by a margin, so that a
device at the limit does not change its mind at every look.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from fedagent_protocol.option import Option

BATTERY_MARGIN = 0.05
TEMPERATURE_MARGIN_C = 5.0
LOAD_MARGIN = 0.1
MEMORY_MARGIN = 1.25


class LimitsSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When this device trains."""

    min_battery: Annotated[
        float,
        Meta(ge=0, le=100),
        Option(
            "Do not train on battery below this charge; 0 for no limit, 100 for mains only.",
            metavar="PERCENT",
        ),
    ] = 30.0
    max_temperature: Annotated[
        float,
        Meta(ge=0, le=200),
        Option(
            "Do not train while the device is hotter than this; 0 for no limit.", metavar="CELSIUS"
        ),
    ] = 85.0
    when_throttled: Annotated[bool, Option("Train even while the device throttles itself.")] = False
    on_metered: Annotated[
        bool, Option("Train even over a link that NetworkManager calls metered (it costs money).")
    ] = False
    min_memory: Annotated[
        int,
        Meta(ge=0, le=1 << 20),
        Option("Do not train with less free memory than this; 0 for no limit.", metavar="MB"),
    ] = 64
    max_load: Annotated[
        float,
        Meta(ge=0, le=100),
        Option(
            "Do not train while other programs use a larger share of the processors; 100 for "
            "no limit.",
            metavar="PERCENT",
        ),
    ] = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Battery and mains."""

    battery: float | None = None  # charge, 0 to 1; None without a battery
    mains: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One look at the device; None where something cannot be known."""

    power: Power | None = None
    temperature_c: float | None = None
    throttled: str | None = None  # why the device slows itself down; empty if it does not
    metered: bool | None = None
    memory_bytes: int | None = None
    load: float | None = None  # share of the processors that other programs use, 0 to 1
    busy_s: float | None = None  # processor time that everything used since boot, over all cores
    own_s: float = 0.0  # the part of it that this agent and its trainer used
    frequency: float = 1.0  # current clock over the highest


@dataclass(frozen=True, slots=True)
class LimitCheck:
    """What one rule makes of a reading."""

    rule: str
    text: str  # the reading; if the rule objects, the reason
    objects: bool
    hint: str  # the option that moves the limit


def _battery(now: Condition, limits: LimitsSettings, held: bool) -> tuple[str, bool]:
    power = now.power
    if power is None:
        return "not known", False
    if power.mains or power.battery is None:
        known = "" if power.battery is None else f", battery at {power.battery:.0%}"
        return f"on mains{known}", False
    least = limits.min_battery / 100
    objects = power.battery < least + (BATTERY_MARGIN if held and least else 0.0)
    return f"on battery, at {power.battery:.0%}", objects or least == 1.0


def _temperature(now: Condition, limits: LimitsSettings, held: bool) -> tuple[str, bool]:
    if (celsius := now.temperature_c) is None:
        return "not known", False
    most = limits.max_temperature - (TEMPERATURE_MARGIN_C if held else 0.0)
    objects = limits.max_temperature > 0 and celsius > most
    return f"{celsius:.0f} °C" + (" hot" if objects else ""), objects


def _throttled(now: Condition, limits: LimitsSettings, _held: bool) -> tuple[str, bool]:
    why = now.throttled
    text = {None: "not known", "": "runs at full speed"}.get(why, f"throttled: {why}")
    return text, bool(why) and not limits.when_throttled


def _metered(now: Condition, limits: LimitsSettings, _held: bool) -> tuple[str, bool]:
    text = {None: "not known", True: "the link is metered", False: "the link is not metered"}
    return text[now.metered], bool(now.metered) and not limits.on_metered


def _memory(now: Condition, limits: LimitsSettings, held: bool) -> tuple[str, bool]:
    if (free := now.memory_bytes) is None:
        return "not known", False
    objects = free < (limits.min_memory << 20) * (MEMORY_MARGIN if held else 1.0)
    few = f"only {free >> 20} MB of memory are free"
    return few if objects else f"{free >> 20} MB are free", objects


def _load(now: Condition, limits: LimitsSettings, held: bool) -> tuple[str, bool]:
    if (load := now.load) is None:
        return "not known", False
    objects = load > limits.max_load / 100 - (LOAD_MARGIN if held else 0.0)
    return f"other programs use {load:.0%} of the processors", objects


RULES = {
    "battery": (_battery, "plug it in, or lower --min-battery"),
    "temperature": (_temperature, "cool it, or raise --max-temperature"),
    "throttling": (_throttled, "fix power or cooling, or add --when-throttled"),
    "metered": (_metered, "add --on-metered"),
    "memory": (_memory, "end other programs, or lower --min-memory"),
    "load": (_load, "end other programs, or raise --max-load"),
}


def check_limits(
    now: Condition, limits: LimitsSettings, held: AbstractSet[str] = frozenset()
) -> list[LimitCheck]:
    """Return what each rule says; `held` are those that have objected until now."""
    return [
        LimitCheck(name, *rule(now, limits, name in held), hint)
        for name, (rule, hint) in RULES.items()
    ]
