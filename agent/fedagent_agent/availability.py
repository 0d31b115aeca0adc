"""When a device trains: one rule per thing that its owner may mind. No I/O.

A rule that objects goes on until the reading is better than its limit by a margin, so that a
device at the limit does not change its mind at every look.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Annotated, Literal

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
        Option("Do not train on battery below this charge; 0 for no limit.", metavar="PERCENT"),
    ] = 30.0
    mains_only: Annotated[bool, Option("Never train on battery.")] = False
    max_temperature: Annotated[
        float,
        Meta(ge=0, le=200),
        Option(
            "Do not train while the device is hotter than this; 0 for no limit.", metavar="CELSIUS"
        ),
    ] = 85.0
    when_throttled: Annotated[bool, Option("Train even while the device throttles itself.")] = False
    metered: Annotated[
        Literal["auto", "yes", "no"],
        Option(
            "Whether the link is metered (costs money); auto asks NetworkManager.",
            metavar="auto|yes|no",
        ),
    ] = "auto"
    on_metered: Annotated[bool, Option("Train even over a metered link.")] = False
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

    @property
    def link_is_metered(self) -> bool | None:
        """What the owner says of the link; None: ask."""
        return {"auto": None, "yes": True, "no": False}[self.metered]


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


def check_limits(
    now: Condition, limits: LimitsSettings, held: AbstractSet[str] = frozenset()
) -> list[LimitCheck]:
    """Return what each rule says; `held` are those that have objected until now."""
    return [
        _battery(now.power, limits, held="battery" in held),
        _temperature(now.temperature_c, limits, held="temperature" in held),
        _throttled(now.throttled, limits),
        _metered(now.metered, limits),
        _memory(now.memory_bytes, limits, held="memory" in held),
        _load(now.load, limits, held="load" in held),
    ]


def _battery(power: Power | None, limits: LimitsSettings, *, held: bool) -> LimitCheck:
    hint = "plug it in, or lower --min-battery"
    if power is None:
        return LimitCheck("battery", "not known", objects=False, hint=hint)
    charge = power.battery
    if power.mains or charge is None:
        text = "on mains" if charge is None else f"on mains, battery at {charge:.0%}"
        return LimitCheck("battery", text, objects=False, hint=hint)
    if limits.mains_only:
        text = f"on battery, at {charge:.0%}, but set to train on mains only"
        return LimitCheck(
            "battery", text, objects=True, hint="plug it in, or leave out --mains-only"
        )
    least = limits.min_battery / 100
    least += BATTERY_MARGIN if held and least else 0.0
    return LimitCheck("battery", f"on battery, at {charge:.0%}", objects=charge < least, hint=hint)


def _temperature(celsius: float | None, limits: LimitsSettings, *, held: bool) -> LimitCheck:
    hint = "cool it, or raise --max-temperature"
    if celsius is None:
        return LimitCheck("temperature", "not known", objects=False, hint=hint)
    most = limits.max_temperature - (TEMPERATURE_MARGIN_C if held else 0.0)
    objects = limits.max_temperature > 0 and celsius > most
    text = f"{celsius:.0f} °C hot" if objects else f"{celsius:.0f} °C"
    return LimitCheck("temperature", text, objects, hint)


def _throttled(why: str | None, limits: LimitsSettings) -> LimitCheck:
    hint = "fix power or cooling, or add --when-throttled"
    text = {None: "not known", "": "runs at full speed"}.get(why, f"throttled: {why}")
    return LimitCheck("throttling", text, bool(why) and not limits.when_throttled, hint)


def _metered(metered: bool | None, limits: LimitsSettings) -> LimitCheck:
    hint = "add --on-metered, or --metered no if it is not"
    text = {None: "not known", True: "the link is metered", False: "the link is not metered"}
    return LimitCheck("metered", text[metered], bool(metered) and not limits.on_metered, hint)


def _memory(free: int | None, limits: LimitsSettings, *, held: bool) -> LimitCheck:
    hint = "end other programs, or lower --min-memory"
    if free is None:
        return LimitCheck("memory", "not known", objects=False, hint=hint)
    objects = free < (limits.min_memory << 20) * (MEMORY_MARGIN if held else 1.0)
    text = f"only {free >> 20} MB of memory are free" if objects else f"{free >> 20} MB are free"
    return LimitCheck("memory", text, objects, hint)


def _load(load: float | None, limits: LimitsSettings, *, held: bool) -> LimitCheck:
    hint = "end other programs, or raise --max-load"
    if load is None:
        return LimitCheck("load", "not known", objects=False, hint=hint)
    objects = load > limits.max_load / 100 - (LOAD_MARGIN if held else 0.0)
    return LimitCheck("load", f"other programs use {load:.0%} of the processors", objects, hint)
