"""The rules by which a device trains, on folders that look like sysfs and on real programs."""

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_agent import machine
from fedagent_agent.availability import Condition, LimitCheck, LimitsSettings, Power, check_limits
from fedagent_agent.config import AgentConfig
from fedagent_agent.context import Context, HostInfo, Programs, metered_of, power_of
from fedagent_agent.machine import MachineProbe
from fedagent_node.settings import SettingError


@dataclass
class Sysfs:
    """A folder that looks like sysfs."""

    root: Path

    def put(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def battery(self, percent: int, status: str, name: str = "BAT0") -> None:
        folder = f"class/power_supply/{name}"
        self.put(f"{folder}/type", "Battery")
        self.put(f"{folder}/capacity", str(percent))
        self.put(f"{folder}/status", status)

    def mains(self, online: int) -> None:
        self.put("class/power_supply/AC/type", "Mains")
        self.put("class/power_supply/AC/online", str(online))

    def zone(self, number: int, kind: str, thousandths: int) -> None:
        self.put(f"class/thermal/thermal_zone{number}/type", kind)
        self.put(f"class/thermal/thermal_zone{number}/temp", str(thousandths))


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path / "sys")


def objections(context: Context) -> list[str]:
    return [said.rule for said in context.check_limits(time.monotonic()) if said.objects]


def said(
    now: Condition, limits: LimitsSettings | None = None, **held: bool
) -> dict[str, LimitCheck]:
    return {one.rule: one for one in check_limits(now, limits or LimitsSettings(), frozenset(held))}


# ------------------------------------------------------------------- what is read


def test_a_laptop_on_battery(sysfs: Sysfs) -> None:
    sysfs.battery(81, "Discharging")
    sysfs.mains(0)
    assert machine.power(sysfs.root) == Power(battery=0.81, mains=False)
    sysfs.mains(1)
    assert machine.power(sysfs.root) == Power(battery=0.81, mains=True)


def test_the_emptiest_of_two_batteries_counts_and_a_mouse_does_not(sysfs: Sysfs) -> None:
    sysfs.battery(90, "Discharging", "BAT0")
    sysfs.battery(20, "Discharging", "BAT1")
    sysfs.battery(3, "Discharging", "hidpp_battery_0")
    sysfs.put("class/power_supply/hidpp_battery_0/scope", "Device")
    assert machine.power(sysfs.root) == Power(battery=0.2, mains=False)


def test_what_is_not_there_or_makes_no_sense_is_not_known(sysfs: Sysfs) -> None:
    assert machine.power(sysfs.root) is None
    assert machine.temperature_c(sysfs.root) is None
    assert machine.throttled(sysfs.root) is None
    sysfs.zone(0, "cpu-thermal", -274_000)
    sysfs.put("class/thermal/thermal_zone1/temp", "not a number")
    sysfs.put("devices/platform/soc/soc:firmware/get_throttled", "?")
    assert machine.temperature_c(sysfs.root) is None
    assert machine.throttled(sysfs.root) is None


def test_the_hottest_zone_of_the_processor_counts(sysfs: Sysfs) -> None:
    sysfs.zone(0, "iwlwifi", 99_000)
    assert machine.temperature_c(sysfs.root) == 99.0
    sysfs.zone(1, "x86_pkg_temp", 61_500)
    sysfs.zone(2, "CPU-therm", 48_000)
    assert machine.temperature_c(sysfs.root) == 61.5


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("0", ""),
        ("50000", ""),  # it was, some time ago
        ("50005", "the supply voltage is too low, it is throttled"),
        ("8", "it is at its soft temperature limit"),
        ("2", "the clock is capped"),
    ],
)
def test_a_raspberry_pis_flags(sysfs: Sysfs, flags: str, reason: str) -> None:
    sysfs.put("devices/platform/soc/soc:firmware/get_throttled", flags)
    assert machine.throttled(sysfs.root) == reason


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


# --------------------------------------------------------------------- the rules


def test_each_rule_objects_alone(sysfs: Sysfs) -> None:
    probe = MachineProbe(sysfs.root)
    assert objections(Context(probe)) == []
    sysfs.battery(20, "Discharging")
    assert objections(Context(probe)) == ["battery"]
    assert objections(Context(probe, limits=LimitsSettings(min_battery=10))) == []
    sysfs.battery(90, "Discharging")
    assert objections(Context(probe)) == []
    assert objections(Context(probe, limits=LimitsSettings(mains_only=True))) == ["battery"]
    sysfs.zone(0, "cpu-thermal", 86_000)
    assert objections(Context(probe)) == ["temperature"]
    assert objections(Context(probe, limits=LimitsSettings(max_temperature=0))) == []
    sysfs.zone(0, "cpu-thermal", 70_000)
    sysfs.put("devices/platform/soc/soc:firmware/get_throttled", "4")
    assert objections(Context(probe)) == ["throttling"]
    assert objections(Context(probe, limits=LimitsSettings(when_throttled=True))) == []
    sysfs.put("devices/platform/soc/soc:firmware/get_throttled", "0")
    assert objections(Context(probe, limits=LimitsSettings(metered="yes"))) == ["metered"]
    assert objections(Context(probe, limits=LimitsSettings(metered="yes", on_metered=True))) == []
    assert objections(Context(probe, limits=LimitsSettings(min_memory=1 << 40))) == ["memory"]
    assert objections(Context(probe, limits=LimitsSettings(min_memory=0))) == []


def test_what_the_owner_says_of_the_link_wins(sysfs: Sysfs) -> None:
    context = Context(MachineProbe(sysfs.root))
    context.update_host(HostInfo(metered=True))
    assert objections(context) == ["metered"]
    owned = Context(MachineProbe(sysfs.root), limits=LimitsSettings(metered="no"))
    owned.update_host(HostInfo(metered=True))
    assert objections(owned) == []


def test_load_is_what_others_use() -> None:
    now = Condition(load=0.6)
    assert not said(now)["load"].objects
    assert said(now, LimitsSettings(max_load=50))["load"].objects


def test_the_reason_reaches_the_report(sysfs: Sysfs) -> None:
    sysfs.battery(12, "Discharging")
    sysfs.zone(0, "cpu-thermal", 51_200)
    readings = Context(MachineProbe(sysfs.root)).read(0.0)
    assert (readings.available, readings.reason) == (False, "on battery, at 12%")
    assert (readings.battery, readings.temperature_c) == (0.12, 51.2)


@given(st.floats(0, 1), st.integers(5, 100), st.booleans())
def test_who_objected_goes_on_until_it_is_better_by_a_margin(
    charge: float, percent: int, held: bool
) -> None:
    now = Condition(power=Power(battery=charge, mains=False))
    limits, least = LimitsSettings(min_battery=percent), percent / 100
    free, holding = (said(now, limits, **h) for h in ({}, {"battery": True}))
    assert free["battery"].objects == (charge < least)
    assert holding["battery"].objects >= free["battery"].objects
    assert not holding["battery"].objects or charge < least + 0.05


# ------------------------------------------------------------- what is asked for

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


@given(st.text())
def test_any_answer_is_read_or_not_known(text: str) -> None:
    assert metered_of(text) in (True, False, None)
    assert power_of(text) is None or isinstance(power_of(text), Power)


@pytest.mark.parametrize(
    ("text", "power"),
    [
        (
            '{"health": "GOOD", "percentage": 68, "plugged": "UNPLUGGED", "temperature": 25.2}',
            Power(battery=0.68, mains=False),
        ),
        ('{"percentage": 100, "plugged": "PLUGGED_AC"}', Power(battery=1.0, mains=True)),
        ("", None),
        ('{"percentage": "full"}', None),
    ],
)
def test_a_phones_charge(text: str, power: Power | None) -> None:
    assert power_of(text) == power


def _program(folder: Path, name: str, script: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def test_programs_are_run_and_their_failure_is_no_error(tmp_path: Path) -> None:
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    _program(tmp_path, "nmcli", f"cat <<'X'\n{NMCLI.format(ethernet='20 (unavailable)')}X")
    _program(tmp_path, "termux-battery-status", "echo '{\"percentage\": 7}'")
    programs = Programs.here(path)
    assert programs
    told = asyncio.run(programs.ask())
    assert told == HostInfo(metered=True, power=Power(battery=0.07, mains=False))
    _program(tmp_path, "nmcli", "exit 8")
    _program(tmp_path, "termux-battery-status", "echo broken; exit 1")
    assert asyncio.run(programs.ask()) == HostInfo()
    (tmp_path / "nmcli").unlink()
    assert asyncio.run(programs.ask()) == HostInfo()
    assert not Programs()


def test_a_program_whose_own_program_hangs_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second holds the pipe that we read, also when the first is gone."""
    monkeypatch.setattr("fedagent_agent.context.PATIENCE_S", 1.0)
    _program(tmp_path, "nmcli", f"sleep 1000 & echo $! > {tmp_path}/pid; wait")

    async def asked() -> HostInfo:
        async with asyncio.timeout(600):
            return await Programs(nmcli=str(tmp_path / "nmcli")).ask()

    try:
        assert asyncio.run(asked()) == HostInfo()
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


# ------------------------------------------------------------------- the settings


def test_the_settings_of_the_rules() -> None:
    care = '{"min_battery": 50, "metered": "yes", "max_load": 25, "min_memory": 128}'
    config = AgentConfig.load(f'{{"data_dir": "x", "stream": "digits", "limits": {care}}}', {})
    assert (config.limits.min_battery, config.limits.max_load) == (50, 25)
    assert config.limits.min_memory == 128
    assert config.limits.link_is_metered is True
    assert config.memory_bytes() > 64 << 20
    with pytest.raises(SettingError, match="limits"):
        AgentConfig.load('{"data_dir": "x", "stream": "digits", "limits": {"least_batery": 1}}', {})
