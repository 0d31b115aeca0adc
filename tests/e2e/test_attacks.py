"""Whoever reaches a broker is nobody: what is written in the names of others changes nothing.

The attacker is a client of another make that hears everything and may write everywhere: the
broker is an untrusted cache, and this one has no access list.
"""

from pathlib import Path

import pytest

from fedagent_task.recipe.text import parse_recipe
from fedagent_testbed.local import LocalField, RoleProcess
from tests.fakes.attacker import Attack, Attacker

from .support import BROKERS, DEMO, check_books, new_field, shared_broker, start_small

MODEL = parse_recipe(DEMO.read_text()).model
ROUNDS, AGENTS = 3, 3
WAYS = ("unsigned", "other_key", "bad_signature", "replayed")


def honest_rounds(coordinator: RoleProcess) -> None:
    """Every round used, and paid, every honest agent and nobody else."""
    end = coordinator.wait("end")
    rounds = coordinator.all("round")
    assert [each["used"] for each in rounds] == [AGENTS] * ROUNDS
    assert end["rounds_done"] == ROUNDS
    assert end["ledger_balanced"] is True
    assert float(str(end["accuracy"])) > 0.2


def refusals(process: RoleProcess) -> set[str]:
    """Return the reasons that a process gave in its log."""
    log = process.log.read_text()
    return {way for way in WAYS if f"refused: {way}:" in log}


@pytest.mark.slow
@pytest.mark.parametrize("kind", BROKERS)
def test_forged_replayed_and_relabelled_messages_change_nothing(tmp_path: Path, kind: str) -> None:
    """Updates, NaNs, reports of weight 1e9, orders of round 2^53 - 1: findings 1 and 2."""
    with (
        shared_broker(tmp_path / "broker", kind=kind) as address,
        Attacker(address, Attack(MODEL)) as attacker,
        new_field(tmp_path, broker=address) as field,
    ):
        # On a busy machine the attacker needs a moment between rounds, too.
        sets = ("policy.name=cheapest", "budget.per_edge=10", "rounds.every_s=2")
        coordinator = start_small(field, rounds=ROUNDS, agents=AGENTS, broker=address, sets=sets)
        honest_rounds(coordinator)
        assert attacker.sent > 30 * ROUNDS
        check_refusals(field)
    check_books(coordinator)


def check_refusals(field: LocalField) -> None:
    """Every way was refused by who was addressed, with its reason, in the log."""
    by_role: dict[str, set[str]] = {}
    for process in field.processes.values():
        by_role.setdefault(process.role, set()).update(refusals(process))
    assert by_role["edge"] == set(WAYS)
    assert by_role["agent"] >= {"unsigned", "other_key", "replayed"}
    assert by_role["coordinator"] >= {"unsigned", "other_key", "replayed"}
