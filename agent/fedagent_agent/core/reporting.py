"""What an agent reports of itself, what it asks for, and when it says so again."""

from dataclasses import dataclass, field

from fedagent_protocol.messages import MAX_MICRO, ContextReport

CHANGE = 0.1
"""A feature or price that moved by more than this fraction is reported at once."""
MIN_GAP_S = 1.0
"""Reports of changes are at least so far apart."""
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
}
_MAX_BPS = 1e11


@dataclass(frozen=True, slots=True)
class Price:
    """An agent's own price function c(y) = base + per_compute · y (ALGORITHMS section 8).

    `y` is the available compute in cores; both factors are non-negative, so that
    the price never falls when more compute is offered. Micro-credits throughout.
    """

    base_micro: int = 0
    per_compute_micro: int = 0

    def at(self, compute: float) -> int:
        """Return the price for one round at this much available compute."""
        thousandths = max(0, int(compute * 1000))
        return min(MAX_MICRO, self.base_micro + self.per_compute_micro * thousandths // 1000)


FREE = Price()
"""The price function of a device that asks for nothing."""


@dataclass(frozen=True, slots=True)
class Readings:
    """What was measured of the device.

    Attributes:
        compute: Cores' worth of processor that others leave free.
        available: Whether the device may train now; else `reason` says what forbids it.
        battery: Charge, 0 to 1; None without a battery.
        temperature_c: Of the hottest part; None where it cannot be known.
    """

    compute: float = 1.0
    available: bool = True
    reason: str = ""
    battery: float | None = None
    temperature_c: float | None = None


@dataclass(slots=True)
class LinkQuality:
    """What was measured of the path to one edge; None where nothing was yet."""

    download_bps: float | None = None
    upload_bps: float | None = None
    rtt_s: float | None = None

    def note_download(self, nbytes: int, seconds: float) -> None:
        """Take in a measured download."""
        self.download_bps = _smoothed(self.download_bps, _rate(nbytes, seconds))

    def note_upload(self, nbytes: int, seconds: float) -> None:
        """Take in a measured upload."""
        self.upload_bps = _smoothed(self.upload_bps, _rate(nbytes, seconds))

    def note_rtt(self, seconds: float) -> None:
        """Take in a measured round trip."""
        self.rtt_s = _smoothed(self.rtt_s, max(0.0, seconds))


@dataclass(slots=True)
class DeviceState:
    """What the agent knows of itself, whichever edge asks.

    Attributes:
        load_limit_s: pi of the device, seconds of computation per round; 0 for no limit.
        cold: The next training starts a process, or a learner, that remembers nothing.
        position: x and y in kilometres, where the owner declares them.
    """

    price: Price
    readings: Readings = field(default_factory=Readings)
    seconds_per_iteration: float | None = None
    arrivals_per_s: float | None = None
    arrivals_per_step: float | None = None
    load_limit_s: float = 0.0
    cold: bool = True
    position: tuple[float, float] | None = None

    @property
    def price_micro(self) -> int:
        """What a round costs now."""
        return self.price.at(self.readings.compute)

    def load_limit(self, task_s: float) -> float:
        """Return the smaller of the device's limit and the task's; 0 where there is none."""
        return min((limit for limit in (self.load_limit_s, task_s) if limit > 0), default=0.0)

    def note_training(
        self, *, per_iteration: float, arrivals_per_s: float | None, arrivals_per_step: float
    ) -> None:
        """Take in what a training measured."""
        if per_iteration > 0:
            self.seconds_per_iteration = _smoothed(self.seconds_per_iteration, per_iteration)
        if arrivals_per_s is not None:
            # Where no rate is, what gathered before is in the number per step as well.
            self.arrivals_per_s = _smoothed(self.arrivals_per_s, arrivals_per_s)
            self.arrivals_per_step = _smoothed(self.arrivals_per_step, arrivals_per_step)
        self.cold = False

    def report(self, link: LinkQuality, *, run: str, seq: int) -> ContextReport:
        """Return the report for the edge at the end of `link`."""
        x_km, y_km = self.position if self.position is not None else (None, None)
        features = {
            "compute": self.readings.compute,
            "cold": float(self.cold),
            "seconds_per_iteration": self.seconds_per_iteration,
            "arrivals_per_s": self.arrivals_per_s,
            "arrivals_per_step": self.arrivals_per_step,
            "load_limit_s": self.load_limit_s or None,
            "battery": self.readings.battery,
            "temperature_c": self.readings.temperature_c,
            "download_bps": link.download_bps,
            "upload_bps": link.upload_bps,
            "rtt_s": link.rtt_s,
            "x_km": x_km,
            "y_km": y_km,
        }
        return ContextReport(
            run=run,
            seq=seq,
            available=self.readings.available,
            reason=self.readings.reason,
            price=self.price_micro,
            features={name: value for name, value in features.items() if value is not None},
        )

    def differs(self, link: LinkQuality, said: ContextReport) -> bool:
        """Whether something moved by more than `CHANGE` since it was reported."""
        now = self.report(link, run=said.run, seq=said.seq)
        if now.available != said.available or now.features.keys() != said.features.keys():
            return True
        if moved(now.price, said.price):
            return True
        return any(
            moved(value, said.features[name], _QUIET.get(name, 0.0))
            for name, value in now.features.items()
        )


def moved(new: float, old: float, quiet: float = 0.0) -> bool:
    """Whether a value moved by more than `CHANGE` of what it was, and more than `quiet`."""
    return abs(new - old) > max(CHANGE * abs(old), quiet)


def is_stale(offered_micro: int, asked_micro: int) -> bool:
    """Whether the price has risen by more than `CHANGE` over what the order offers."""
    return 10 * asked_micro > 11 * offered_micro


def _rate(nbytes: int, seconds: float) -> float:
    return min(_MAX_BPS, 8.0 * nbytes / max(seconds, 1e-5))


def _smoothed(old: float | None, new: float) -> float:
    return new if old is None else old + SMOOTHING * (new - old)
