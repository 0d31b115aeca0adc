"""The device as its agent reports it: price, readings, measured links."""

import math
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta, Struct

from fedagent_protocol.messages import MAX_MICRO, ContextReport
from fedagent_protocol.option import Option
from fedagent_protocol.transfer import Pace

MICRO = 1_000_000
Credits = Annotated[float, Meta(ge=0, le=1e6)]

CHANGE = 0.1
"""A feature or price that moved by more than this fraction is reported at once."""
MIN_GAP_S = 1.0
SMOOTHING = 0.3
"""Weight of a new measurement of a rate."""
_QUIET = {
    "rtt_s": 0.005,
    "arrivals_per_s": 0.2,
    "arrivals_per_step": 1.0,
    "seconds_per_iteration": 1e-4,
    "compute": 0.05,
    "battery": 0.05,
    "temperature_c": 5.0,
    "signal_dbm": 3.0,
}
_MAX_BPS = 1e11
PREPARING = "preparing the task"
"""Reason why a device is not available yet."""


class PriceSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The device's price function c(y) = base + per_compute * y, y in cores (ALGORITHMS section 8).

    Both factors are non-negative: the price never falls when more compute is offered.
    """

    base: Annotated[
        Credits, Option("Credits this device asks for one round.", name="--price-base")
    ] = 0.1
    per_compute: Annotated[
        Credits, Option("Extra credits for each core that is free.", name="--price-per-compute")
    ] = 0.2

    def micro(self, compute: float) -> int:
        """Return the price of one round in micro-credits."""
        base, factor = round(self.base * MICRO), round(self.per_compute * MICRO)
        thousandths = max(0, int(compute * 1000))
        return min(MAX_MICRO, base + factor * thousandths // 1000)


class Radio(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One Wi-Fi interface; None where its driver does not say."""

    interface: str
    signal_dbm: float | None = None
    link_bps: float | None = None
    bandwidth_hz: float | None = None

    def __str__(self) -> str:
        said = [f"{self.signal_dbm:.0f} dBm"] if self.signal_dbm is not None else []
        said += [f"{self.link_bps / 1e6:.0f} Mbit/s"] if self.link_bps is not None else []
        said += [f"{self.bandwidth_hz / 1e6:.0f} MHz"] if self.bandwidth_hz is not None else []
        return f"{self.interface}: {', '.join(said) or 'nothing'}"


@dataclass(frozen=True, slots=True)
class Readings:
    """What was measured of the device."""

    compute: float = 1.0  # cores' worth of processor that others leave free
    available: bool = True  # whether the device may train now; else `reason` is what forbids it
    reason: str = ""
    battery: float | None = None
    temperature_c: float | None = None
    radio: Radio | None = None
    price_micro: int | None = None
    """Price of a round instead of the price function's; for the testbed."""
    slow_s: float | None = None  # seconds of a training instead of the settings'; for the testbed


@dataclass(slots=True)
class LinkQuality:
    """What was measured of the path to one edge, and where that is; None where nothing was yet."""

    download_bps: float | None = None
    upload_bps: float | None = None
    rtt_s: float | None = None
    position: tuple[float, float] | None = None  # x and y in kilometres
    down: Pace = field(default_factory=Pace)
    up: Pace = field(default_factory=Pace)

    def note_download(self, nbytes: int, seconds: float) -> None:
        """Add a measured download."""
        self.download_bps = _smoothed(self.download_bps, _rate(nbytes, seconds))

    def note_upload(self, nbytes: int, seconds: float) -> None:
        """Add a measured upload."""
        self.upload_bps = _smoothed(self.upload_bps, _rate(nbytes, seconds))

    def note_rtt(self, seconds: float) -> None:
        """Add a measured round trip."""
        self.rtt_s = _smoothed(self.rtt_s, seconds)


@dataclass(slots=True)
class DeviceState:
    """What the agent knows of its device, whichever edge asks."""

    pricing: PriceSettings
    readings: Readings = field(default_factory=Readings)
    seconds_per_iteration: float | None = None
    arrivals_per_s: float | None = None
    arrivals_per_step: float | None = None
    load_limit_s: float = 0.0  # pi of the device, seconds of computation per round; 0 for no limit
    cold: bool = True  # the next training starts a process, or a learner, that remembers nothing
    position: tuple[float, float] | None = None  # x and y in kilometres
    extra_s: float = 0.0
    preparing: bool = False  # the task is being opened before its first order
    spent: dict[str, str] = field(default_factory=dict)
    """Runs whose epsilon is used up here, and the words for it."""

    @property
    def price_micro(self) -> int:
        """Price of a round now."""
        price = self.readings.price_micro
        return self.pricing.micro(self.readings.compute) if price is None else price

    @property
    def slow_s(self) -> float:
        """Seconds that a round without training takes."""
        return self.extra_s if self.readings.slow_s is None else self.readings.slow_s

    def load_limit(self, task_s: float) -> float:
        """Return the smaller of the device's limit and the task's; 0 where there is none."""
        return min((limit for limit in (self.load_limit_s, task_s) if limit > 0), default=0.0)

    def note_training(
        self, *, per_iteration: float, arrivals_per_s: float | None, arrivals_per_step: float
    ) -> None:
        """Add what a training measured."""
        if per_iteration > 0:
            self.seconds_per_iteration = _smoothed(self.seconds_per_iteration, per_iteration)
        if arrivals_per_s is not None:
            # Where no rate is, what gathered before is in the number per step as well.
            self.arrivals_per_s = _smoothed(self.arrivals_per_s, arrivals_per_s)
            self.arrivals_per_step = _smoothed(self.arrivals_per_step, arrivals_per_step)
        self.cold = False

    def context_report(self, link: LinkQuality, *, run: str, seq: int) -> ContextReport:
        """Return the report for the edge at the end of `link`."""
        here, there, readings = self.position, link.position, self.readings
        x_km, y_km = here or (None, None)
        radio = readings.radio or Radio(interface="")
        features = {
            "compute": readings.compute,
            "cold": float(self.cold),
            "seconds_per_iteration": self.seconds_per_iteration,
            "arrivals_per_s": self.arrivals_per_s,
            "arrivals_per_step": self.arrivals_per_step,
            "load_limit_s": self.load_limit_s or None,
            "battery": readings.battery,
            "temperature_c": readings.temperature_c,
            "download_bps": link.download_bps,
            "upload_bps": link.upload_bps,
            "rtt_s": link.rtt_s,
            "x_km": x_km,
            "y_km": y_km,
            "distance_km": round(math.dist(here, there), 6) if here and there else None,
            "signal_dbm": radio.signal_dbm,
            "link_bps": radio.link_bps,
            "bandwidth_hz": radio.bandwidth_hz,
        }
        preparing = PREPARING if self.preparing else ""
        return ContextReport(
            run=run,
            seq=seq,
            available=readings.available and not preparing and run not in self.spent,
            reason=readings.reason or preparing or self.spent.get(run, ""),
            price=self.price_micro,
            features={name: value for name, value in features.items() if value is not None},
        )

    def differs(self, link: LinkQuality, last: ContextReport) -> bool:
        """Whether something moved by more than `CHANGE` since it was reported."""
        now = self.context_report(link, run=last.run, seq=last.seq)
        old, new = last.features, now.features
        if now.available != last.available or new.keys() != old.keys():
            return True
        if abs(now.price - last.price) > CHANGE * last.price:
            return True
        return any(
            abs(new[name] - old[name]) > max(CHANGE * abs(old[name]), _QUIET.get(name, 0.0))
            for name in new
        )


def _rate(nbytes: int, seconds: float) -> float:
    return min(_MAX_BPS, 8.0 * nbytes / max(seconds, 1e-5))


def _smoothed(old: float | None, new: float) -> float:
    return new if old is None else old + SMOOTHING * (new - old)
