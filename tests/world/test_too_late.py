"""Every way for an update to be too late, from the device to the ledger."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from fedagent_agent.core.device import Readings
from fedagent_agent.core.effects import Measured
from fedagent_coordinator.books.read import open_reader
from fedagent_testbed.kernel import WAN
from fedagent_testbed.roles import AgentNode
from fedagent_testbed.world import VirtualFederation

from .kinds import world

SLOW = "agent-1"
DEADLINE_S, MAX_WAIT_S, GRACE_S = 3.0, 5.0, 2.0
NEVER_S = 20.0

Disturb = Callable[[VirtualFederation], None]


def told(agent: AgentNode) -> list[str]:
    """Return what became of the rounds, as the device knows it."""
    counters = agent.core.counters if agent.driver is not None else {}
    ends = ("receipt_", "abandoned_", "closed_")
    return sorted(name for name in counters if name.startswith(ends))


def trains(agent: AgentNode) -> bool:
    work = agent.core.orders.active if agent.driver is not None else None
    return work is not None and work.job is not None


def once(here: VirtualFederation, is_so: Callable[[], bool], act: Callable[[], None]) -> None:
    """Do something as soon as something is so."""
    if is_so():
        act()
    else:
        here.kernel.after(0.01, lambda: once(here, is_so, act))


def undisturbed(here: VirtualFederation) -> None:
    del here


def out_of_reach(here: VirtualFederation, *, seconds: float) -> None:
    """Lose what the slow device says and hears, from when it trains."""
    part = partial(here.part, [SLOW], at=0.0, seconds=seconds)
    once(here, lambda: trains(here.agents[SLOW]), part)


def silent_edge(here: VirtualFederation) -> None:
    """Part the edge from its coordinator until that does not wait for it any more."""
    cut = partial(here.cut, WAN, at=0.0, seconds=MAX_WAIT_S + GRACE_S + 1.0)
    once(here, lambda: trains(here.agents[SLOW]), cut)


def restart(here: VirtualFederation) -> None:
    """Kill the coordinator once one of the devices has its receipt."""
    here.coordinator.stay_down_s = MAX_WAIT_S
    once(here, lambda: bool(told(here.agents["agent-0"])), here.coordinator.kill)


@dataclass(frozen=True)
class Row:
    """What becomes of the slow device, one of three."""

    told: str
    status: str  # empty where there is no outcome
    used: bool = False
    paid: bool = False
    slow_s: float = 0.2
    third_s: float = 0.2
    min_updates: int = 1
    disturb: Disturb = undisturbed


ROWS = {
    "in time": Row("receipt_accepted", "arrived", used=True, paid=True),
    "late": Row("receipt_late", "late", used=True, paid=True, slow_s=4.0, min_updates=3),
    "late, Z never reached": Row(
        "receipt_late", "late", paid=True, slow_s=4.0, third_s=NEVER_S, min_updates=3
    ),
    "in time, Z never reached": Row(
        "receipt_accepted", "arrived", paid=True, third_s=NEVER_S, min_updates=3
    ),
    "stopped by the close": Row("abandoned_closed", "missed", slow_s=4.0),
    "too late, before max_wait": Row(
        "receipt_too-late",
        "missed",
        slow_s=3.5,
        disturb=partial(out_of_reach, seconds=DEADLINE_S + 1.0),
    ),
    "too late, after max_wait": Row(
        "receipt_too-late",
        "missed",
        slow_s=3.5,
        disturb=partial(out_of_reach, seconds=MAX_WAIT_S + 1.0),
    ),
    "report too late": Row("receipt_accepted receipt_void", "missed", disturb=silent_edge),
    "restart": Row("receipt_accepted receipt_void", "", slow_s=2.0, disturb=restart),
}


@pytest.mark.parametrize("case", ROWS)
def test_a_row_of_the_table_holds_from_the_device_to_the_ledger(tmp_path: Path, case: str) -> None:
    row = ROWS[case]
    sets = (
        f"rounds.min_updates={row.min_updates}",
        "rounds.every_s=60",
        "rounds.count=2",
        "aggregation.late_rounds=0",  # else it goes on, and is told in a later round
    )
    here = world("plain", tmp_path, 3, *sets, agents=3)
    seconds = (0.2, row.slow_s, row.third_s)
    for agent, slow_s in zip(here.agents.values(), seconds, strict=True):
        agent.slow_s = slow_s
    row.disturb(here)
    found: list[list[str]] = []
    here.kernel.after(18.0, lambda: found.append(told(here.agents[SLOW])))
    ending = here.run(seconds=19.0)
    assert ending.balanced, ending.problems
    assert found == [row.told.split()]
    with open_reader(here.coordinator.directory) as read:
        outcomes = [
            (one.status, one.used, bool(one.paid_micro))
            for one in read.outcomes(read.run().run_id)
            if here.names[one.agent] == SLOW
        ]
    assert outcomes == ([(row.status, row.used, row.paid)] if row.status else [])
    assert ending.settled_reports == ((1, "done" if row.status else "void"),)


def test_a_device_whose_first_round_is_slow_is_ordered_again_within_ten(tmp_path: Path) -> None:
    """A slow start gave a trust of 0.02, and no order for 24 rounds: half of eight can be paid."""
    sets = ("policy.name=adaptive", "rounds.count=50", "budget.per_edge=0.4", "budget.total=1000")
    here = world("plain", tmp_path, 3, *sets, agents=8)
    slow = here.agents[SLOW]
    slow.slow_s = 4.0
    warm = Measured(Readings(compute=1.0, slow_s=0.2))
    once(here, lambda: bool(told(slow)), lambda: slow.receive(warm))
    here.run(seconds=900)
    with open_reader(here.coordinator.directory) as read:
        run = read.run().run_id
        trust = read.judged(run)
        for device in read.devices(run):
            ordered = [one.round for one in read.orders_of(run, device.client)][::-1][:5]
            assert max(b - a for a, b in zip([0, *ordered], ordered, strict=False)) <= 10
            assert len(ordered) == 5
            assert trust[device.client][0] == 1.0
