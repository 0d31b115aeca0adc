"""What the device is and wants: free compute and availability, from looks at the machine."""

from typing import Protocol

from .availability import Condition, LimitCheck, LimitsSettings, check_limits
from .core.device import Readings
from .host_info import HostInfo
from .machine import MachineProbe, Sample

MEMORY_S = 30.0
"""Time constant of the smoothed load: prices and policies need a steady number."""
SLOW_EVERY = 6
"""The frequency is read at every so many-th call; it costs more."""


class Probe(Protocol):
    """Something that looks at a machine."""

    def cores(self) -> int:
        """Return the number of processors that may be used."""
        ...

    def sample(self, *, slow: bool) -> Sample:
        """Return a look; `slow` reads what costs more as well."""
        ...


class Context:
    """Available compute and availability, from samples some seconds apart.

    Available compute y is in cores: the cores that this process may use, times the
    clock's share of its maximum, times the share that others leave idle. What the
    agent and its own trainer use counts as available.

    Args:
        probe: Looks at the machine.
        limits: What the owner allows.
    """

    def __init__(
        self,
        probe: Probe | None = None,
        *,
        limits: LimitsSettings = LimitsSettings(),  # noqa: B008 - frozen
    ) -> None:
        self._probe = probe if probe is not None else MachineProbe()
        self._limits = limits
        self._host = HostInfo()
        self._held: frozenset[str] = frozenset()
        self._cores = self._probe.cores()
        self._calls = 0
        self._last: tuple[float, Sample] | None = None
        self._idle: float | None = None

    def update_host(self, info: HostInfo) -> None:
        """Take in what other programs say."""
        self._host = info

    def read(self, now: float) -> Readings:
        """Look at the machine; `now` is monotonic."""
        sample, said = self._look(now)
        objections = [verdict for verdict in said if verdict.objects]
        self._held = frozenset(verdict.rule for verdict in objections)
        idle = 1.0 if self._idle is None else self._idle
        power = sample.power if self._host.power is None else self._host.power
        return Readings(
            compute=round(self._cores * min(1.0, sample.frequency) * idle, 3),
            available=not objections,
            reason=objections[0].text if objections else "",
            battery=power.battery if power is not None else None,
            temperature_c=sample.temperature_c,
        )

    def check_limits(self, now: float) -> list[LimitCheck]:
        """Return what every rule says."""
        return self._look(now)[1]

    def _look(self, now: float) -> tuple[Sample, list[LimitCheck]]:
        sample = self._probe.sample(slow=self._calls % SLOW_EVERY == 0)
        self._calls += 1
        self._note_load(sample, now)
        owner = self._limits.link_is_metered
        condition = Condition(
            power=sample.power if self._host.power is None else self._host.power,
            temperature_c=sample.temperature_c,
            throttled=sample.throttled,
            metered=self._host.metered if owner is None else owner,
            memory_bytes=sample.memory_bytes,
            load=None if self._idle is None else 1.0 - self._idle,
        )
        return sample, check_limits(condition, self._limits, self._held)

    def _note_load(self, sample: Sample, now: float) -> None:
        last = self._last
        if last is not None and now - last[0] < 0.1:
            return
        self._last = now, sample
        if last is None or sample.busy_s is None or last[1].busy_s is None:
            return
        seconds = now - last[0]
        others = (sample.busy_s - last[1].busy_s) - (sample.own_s - last[1].own_s)
        idle = 1.0 - min(1.0, max(0.0, others / (seconds * self._cores)))
        weight = min(1.0, seconds / MEMORY_S)
        self._idle = idle if self._idle is None else self._idle + weight * (idle - self._idle)
