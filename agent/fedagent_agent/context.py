"""What the device is: free compute, memory, power. Measured, never simulated."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import psutil

from .core.reporting import Readings

LEAST_MEMORY_BYTES = 64 << 20
LEAST_BATTERY_PERCENT = 30.0
MEMORY_S = 30.0
"""Time constant of the smoothed load: prices and policies need a steady number."""
SLOW_EVERY = 6
"""Frequency and battery are read at every so many-th call; they cost more."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the machine.

    Attributes:
        busy_s: Processor time that everything used since boot, over all cores.
        own_s: The part of it that this agent and its trainer used.
        frequency: Current clock over the highest; 1 where it cannot be known.
        battery_percent: None without a battery, or on mains.
    """

    busy_s: float
    own_s: float
    memory_bytes: int
    frequency: float = 1.0
    battery_percent: float | None = None


class Probe(Protocol):
    """Something that looks at a machine."""

    def cores(self) -> int:
        """Return the number of processors that may be used."""
        ...

    def sample(self, *, slow: bool) -> Sample:
        """Return a look; `slow` reads what costs more as well."""
        ...


class Context:
    """Available compute and willingness, from samples some seconds apart.

    Available compute y is in cores: the cores that this process may use, times the
    clock's share of its maximum, times the share that others leave idle. What the
    agent and its own trainer use counts as available.
    """

    def __init__(self, probe: Probe | None = None) -> None:
        self._probe = probe if probe is not None else MachineProbe()
        self._cores = self._probe.cores()
        self._calls = 0
        self._last: tuple[float, Sample] | None = None
        self._idle: float | None = None

    def read(self, now: float) -> Readings:
        """Look at the machine; `now` is monotonic."""
        sample = self._probe.sample(slow=self._calls % SLOW_EVERY == 0)
        self._calls += 1
        self._note_load(sample, now)
        idle = 1.0 if self._idle is None else self._idle
        compute = round(self._cores * min(1.0, sample.frequency) * idle, 3)
        why = _objection(sample)
        return Readings(compute=compute, willing=not why, why=why)

    def _note_load(self, sample: Sample, now: float) -> None:
        last, self._last = self._last, (now, sample)
        if last is None or now - last[0] < 0.1:
            return
        seconds = now - last[0]
        others = (sample.busy_s - last[1].busy_s) - (sample.own_s - last[1].own_s)
        idle = 1.0 - min(1.0, max(0.0, others / (seconds * self._cores)))
        weight = min(1.0, seconds / MEMORY_S)
        self._idle = idle if self._idle is None else self._idle + weight * (idle - self._idle)


class MachineProbe:
    """This machine, through psutil."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._frequency = 1.0
        self._battery: float | None = None

    def cores(self) -> int:
        """Return the number of processors that may be used."""
        return len(os.sched_getaffinity(0))

    def sample(self, *, slow: bool) -> Sample:
        """Return a look at this machine."""
        if slow:
            self._frequency = _frequency()
            self._battery = _battery()
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        return Sample(
            busy_s=sum(times) - idle - guests,
            own_s=self._own_seconds(),
            memory_bytes=psutil.virtual_memory().available,
            frequency=self._frequency,
            battery_percent=self._battery,
        )

    def _own_seconds(self) -> float:
        times = self._own.cpu_times()
        total = times.user + times.system + times.children_user + times.children_system
        for child in self._own.children():
            try:
                own = child.cpu_times()
            except psutil.Error:
                continue  # it ended meanwhile, and counts with the children's times
            total += own.user + own.system
        return float(total)


def _objection(sample: Sample) -> str:
    if sample.memory_bytes < LEAST_MEMORY_BYTES:
        return f"only {sample.memory_bytes >> 20} MB of memory are free"
    battery = sample.battery_percent
    if battery is not None and battery < LEAST_BATTERY_PERCENT:
        return f"on battery, at {battery:.0f} percent"
    return ""


def _frequency() -> float:
    read: Callable[[], object] | None = getattr(psutil, "cpu_freq", None)
    try:
        found = read() if read is not None else None
    except (OSError, NotImplementedError, RuntimeError):
        return 1.0
    current, highest = getattr(found, "current", 0.0), getattr(found, "max", 0.0)
    return min(1.0, current / highest) if current and highest else 1.0


def _battery() -> float | None:
    read: Callable[[], object] | None = getattr(psutil, "sensors_battery", None)
    try:
        found = read() if read is not None else None
    except (OSError, NotImplementedError, RuntimeError):
        return None
    if found is None or getattr(found, "power_plugged", True):
        return None
    return float(getattr(found, "percent", 100.0))
