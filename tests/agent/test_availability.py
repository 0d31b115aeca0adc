"""What a device says of itself and when it trains, on files like sysfs and on real programs."""

import asyncio
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_agent import machine
from fedagent_agent.availability import Condition, LimitsSettings, Power, check_limits
from fedagent_agent.context import Context, ask_host, metered_of
from fedagent_agent.core.device import (
    MICRO,
    PriceSettings,
)
from fedagent_agent.machine import MachineProbe
from fedagent_protocol.messages import MAX_MICRO

PI = "devices/platform/soc/soc:firmware/get_throttled"


def put(sysfs: Path, **files: str) -> None:
    """Write files of one battery, or of any supply, below class/power_supply."""
    for name, text in files.items():
        supply, _, key = name.partition("_")
        file = sysfs / "class" / "power_supply" / supply / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")


def heat(monkeypatch: pytest.MonkeyPatch, **celsius: float) -> None:
    found = {name: [SimpleNamespace(current=value)] for name, value in celsius.items()}
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: found)


def test_the_emptiest_battery_counts_and_a_mouse_does_not(tmp_path: Path) -> None:
    assert machine.power(tmp_path) is None
    put(tmp_path, BAT0_type="Battery", BAT0_capacity="90", BAT0_status="Discharging")
    put(tmp_path, BAT1_type="Battery", BAT1_capacity="20", BAT1_status="Discharging")
    put(tmp_path, mouse_type="Battery", mouse_capacity="3", mouse_scope="Device")
    assert machine.power(tmp_path) == Power(battery=0.2, mains=False)
    put(tmp_path, AC_type="Mains", AC_online="1")
    assert machine.power(tmp_path) == Power(battery=0.2, mains=True)


def test_the_hottest_zone_of_the_processor_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    heat(monkeypatch, iwlwifi=99.0, nvme=-274.0)
    assert machine.temperature_c() == 99.0
    heat(monkeypatch, iwlwifi=99.0, coretemp=61.5, cpu_thermal=48.0)
    assert machine.temperature_c() == 61.5
    heat(monkeypatch)
    assert machine.temperature_c() is None


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("50000", ""),  # it was, some time ago
        ("50005", "the supply voltage is too low, it is throttled"),
        ("?", None),
    ],
)
def test_a_raspberry_pis_flags(tmp_path: Path, flags: str, reason: str | None) -> None:
    (tmp_path / PI).parent.mkdir(parents=True)
    (tmp_path / PI).write_text(flags)
    assert machine.throttled(tmp_path) == reason


def test_a_system_that_keeps_its_processes_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Android: /proc/stat and the table of processes cannot be read, /proc/meminfo can."""
    (tmp_path / "meminfo").write_text(Path("/proc/meminfo").read_text())
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    context = Context(MachineProbe(tmp_path / "sys"))
    readings = [context.read(now) for now in (0.0, 10.0)]
    assert all(0 < one.compute <= MachineProbe().cores() and one.available for one in readings)
    load = next(one for one in context.check_limits(20.0) if one.rule == "load")
    assert (load.text, load.objects) == ("not known", False)


BATTERY = Power(battery=0.2, mains=False)


@pytest.mark.parametrize(
    ("now", "rule", "limits", "otherwise"),
    [
        (Condition(power=BATTERY), "battery", {}, {"min_battery": 10}),
        (Condition(power=Power(battery=1.0, mains=False)), "battery", {"min_battery": 100}, {}),
        (Condition(temperature_c=86.0), "temperature", {}, {"max_temperature": 0}),
        (Condition(throttled="it is hot"), "throttling", {}, {"when_throttled": True}),
        (Condition(metered=True), "metered", {}, {"on_metered": True}),
        (Condition(memory_bytes=1 << 20), "memory", {}, {"min_memory": 0}),
        (Condition(load=0.6), "load", {"max_load": 50}, {"max_load": 100}),
    ],
)
def test_each_rule_objects_alone(
    now: Condition, rule: str, limits: dict[str, float], otherwise: dict[str, float]
) -> None:
    def said(now: Condition, **keys: float) -> list[str]:
        settings = LimitsSettings(**keys)  # type: ignore[arg-type]  # by test
        return [one.rule for one in check_limits(now, settings) if one.objects]

    assert said(now, **limits) == [rule]
    assert (rule == "battery" and limits) or said(now, **otherwise) == []
    assert said(Condition(), **limits) == []


@settings(max_examples=40)
@given(st.floats(0, 1), st.integers(5, 99), st.booleans())
def test_who_objected_goes_on_until_it_is_better_by_a_margin(
    charge: float, percent: int, held: bool
) -> None:
    now, least = Condition(power=Power(battery=charge, mains=False)), percent / 100
    free, holding = (
        check_limits(now, LimitsSettings(min_battery=percent), frozenset(rules))[0].objects
        for rules in ((), ("battery",))
    )
    assert free == (charge < least)
    assert holding >= free
    assert not holding or charge < least + 0.05


NMCLI = """GENERAL.TYPE:ethernet
GENERAL.STATE:{ethernet}
GENERAL.METERED:no (guessed)

GENERAL.TYPE:gsm
GENERAL.STATE:100 (connected)
GENERAL.METERED:yes (guessed)

GENERAL.TYPE:loopback
GENERAL.STATE:100 (connected (externally))
GENERAL.METERED:unknown
"""


@pytest.mark.parametrize(
    ("text", "metered"),
    [
        (NMCLI.format(ethernet="30 (disconnected)"), True),
        (NMCLI.format(ethernet="100 (connected)"), False),
        ("GENERAL.TYPE:wifi\nGENERAL.STATE:100 (connected)\nGENERAL.METERED:unknown\n", None),
        ("GENERAL.METERED:yes\n", None),
        ("Error: NetworkManager is not running.\n", None),
        ("", None),
    ],
)
def test_a_link_is_metered_if_no_connected_device_is_free(text: str, metered: bool | None) -> None:
    assert metered_of(text) is metered


def _program(folder: Path, name: str, script: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def test_programs_are_run_and_their_failure_is_no_error(tmp_path: Path) -> None:
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    _program(tmp_path, "nmcli", f"cat <<'X'\n{NMCLI.format(ethernet='20 (unavailable)')}X")
    charge = '{"percentage": 7, "plugged": "PLUGGED_AC"}'
    _program(tmp_path, "termux-battery-status", f"echo '{charge}'")
    told = asyncio.run(ask_host(path))
    assert (told.metered, told.power) == (True, Power(battery=0.07, mains=True))
    _program(tmp_path, "nmcli", "exit 8")
    _program(tmp_path, "termux-battery-status", "echo broken; exit 1")
    told = asyncio.run(ask_host(path))
    assert (told.metered, told.power) == (None, None)


def test_a_program_whose_own_program_hangs_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second holds the pipe that we read, also when the first is gone."""
    monkeypatch.setattr("fedagent_agent.context.PATIENCE_S", 1.0)
    _program(tmp_path, "nmcli", f"/bin/sleep 1000 & echo $! > {tmp_path}/pid; wait")
    try:
        assert asyncio.run(ask_host(str(tmp_path))).metered is None
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


FREE_MEMORY = 1 << 30


class Scripted(MachineProbe):
    """A machine whose looks the test chooses."""

    def __init__(self, *samples: Condition) -> None:
        super().__init__()
        self.samples = list(samples)

    def cores(self) -> int:
        return 4

    def sample(self) -> Condition:
        return self.samples.pop(0)


def look(busy: float | None, own: float = 0.0, frequency: float = 1.0) -> Condition:
    return Condition(busy_s=busy, own_s=own, memory_bytes=FREE_MEMORY, frequency=frequency)


def test_what_others_use_is_not_available_and_what_we_use_is() -> None:
    context = Context(Scripted(look(0.0), look(20.0, 10.0)))
    assert context.read(0.0).compute == 4.0
    # 40 core-seconds passed, others took 10 of them.
    assert context.read(10.0).compute == pytest.approx(3.0)


@given(
    st.floats(0, MAX_MICRO / MICRO),
    st.floats(0, MAX_MICRO / MICRO),
    st.floats(0, 1e4),
    st.floats(0, 1e4),
)
def test_the_price_never_falls_with_more_compute(
    base: float, factor: float, one: float, other: float
) -> None:
    price = PriceSettings(base=base, per_compute=factor)
    assert price.micro(min(one, other)) <= price.micro(max(one, other)) <= MAX_MICRO
