"""When a device trains: one rule per thing that its owner may mind. No I/O.

Every rule has a limit of its own, and can be switched off by it. A rule that objects
goes on until the reading is better than its limit by a margin, so that a device at the
limit does not change its mind at every look.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

BATTERY_MARGIN = 0.05
TEMPERATURE_MARGIN_C = 5.0
LOAD_MARGIN = 0.1
MEMORY_MARGIN = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimits:
    """What the owner allows.

    Attributes:
        min_battery: Charge, 0 to 1, below which a device on battery does not train.
        mains_only: Never train on battery.
        max_temperature_c: Hottest that the device may be; 0 for any.
        when_throttled: Train also while the device slows itself down.
        on_metered: Train also over a link whose use costs money.
        min_memory_bytes: Memory that must be free; 0 for any.
        max_load: Share of the processors that other programs may use, 0 to 1.
    """

    min_battery: float = 0.3
    mains_only: bool = False
    max_temperature_c: float = 85.0
    when_throttled: bool = False
    on_metered: bool = False
    min_memory_bytes: int = 64 << 20
    max_load: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Battery and mains.

    Attributes:
        battery: Charge, 0 to 1; None without a battery.
        mains: Whether the device is fed from outside.
    """

    battery: float | None = None
    mains: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What the rules look at; None where it cannot be known.

    Attributes:
        throttled: Why the device slows itself down; empty if it does not.
        load: Share of the processors that other programs use, 0 to 1.
    """

    power: Power | None = None
    temperature_c: float | None = None
    throttled: str | None = None
    metered: bool | None = None
    memory_bytes: int | None = None
    load: float | None = None


@dataclass(frozen=True, slots=True)
class LimitCheck:
    """What one rule says.

    Attributes:
        rule: Its name.
        text: The reading; if the rule objects, the reason.
        objects: Whether the device may not train.
        hint: The option that moves the limit.
    """

    rule: str
    text: str
    objects: bool
    hint: str


def check_limits(
    now: Condition, limits: ResourceLimits, held: AbstractSet[str] = frozenset()
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


def _battery(power: Power | None, limits: ResourceLimits, *, held: bool) -> LimitCheck:
    hint = "plug it in, or lower --min-battery"
    if power is None:
        return LimitCheck("battery", "not known", objects=False, hint=hint)
    charge = power.battery
    if power.mains or charge is None:
        text = "on mains" if charge is None else f"on mains, battery at {charge:.0%}"
        return LimitCheck("battery", text, objects=False, hint=hint)
    if limits.mains_only:
        text = f"on battery, at {charge:.0%}, and it trains on mains only"
        return LimitCheck(
            "battery", text, objects=True, hint="plug it in, or leave out --mains-only"
        )
    least = limits.min_battery + (BATTERY_MARGIN if held and limits.min_battery else 0.0)
    return LimitCheck("battery", f"on battery, at {charge:.0%}", objects=charge < least, hint=hint)


def _temperature(celsius: float | None, limits: ResourceLimits, *, held: bool) -> LimitCheck:
    hint = "cool it, or raise --max-temperature"
    if celsius is None:
        return LimitCheck("temperature", "not known", objects=False, hint=hint)
    most = limits.max_temperature_c - (TEMPERATURE_MARGIN_C if held else 0.0)
    objects = limits.max_temperature_c > 0 and celsius > most
    text = f"{celsius:.0f} °C hot" if objects else f"{celsius:.0f} °C"
    return LimitCheck("temperature", text, objects, hint)


def _throttled(why: str | None, limits: ResourceLimits) -> LimitCheck:
    hint = "fix power or cooling, or add --when-throttled"
    text = {None: "not known", "": "runs at full speed"}.get(why, f"throttled: {why}")
    return LimitCheck("throttling", text, bool(why) and not limits.when_throttled, hint)


def _metered(metered: bool | None, limits: ResourceLimits) -> LimitCheck:
    hint = "add --on-metered, or --metered no if it is not"
    text = {None: "not known", True: "the link is metered", False: "the link is not metered"}
    return LimitCheck("metered", text[metered], bool(metered) and not limits.on_metered, hint)


def _memory(free: int | None, limits: ResourceLimits, *, held: bool) -> LimitCheck:
    hint = "end other programs, or lower --min-memory"
    if free is None:
        return LimitCheck("memory", "not known", objects=False, hint=hint)
    objects = free < limits.min_memory_bytes * (MEMORY_MARGIN if held else 1.0)
    text = f"only {free >> 20} MB of memory are free" if objects else f"{free >> 20} MB are free"
    return LimitCheck("memory", text, objects, hint)


def _load(load: float | None, limits: ResourceLimits, *, held: bool) -> LimitCheck:
    hint = "end other programs, or raise --max-load"
    if load is None:
        return LimitCheck("load", "not known", objects=False, hint=hint)
    objects = load > limits.max_load - (LOAD_MARGIN if held else 0.0)
    return LimitCheck("load", f"other programs use {load:.0%} of the processors", objects, hint)
