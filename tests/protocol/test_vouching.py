"""The coordinator's word on a task is of one site, run, task and end, and its alone."""

import pytest

from fedagent_protocol.messages import OpinionMode, TaskClaim
from fedagent_protocol.vouching import (
    Assigning,
    Calling,
    NobodyVouches,
    is_task_claim,
    made_bytes,
    sign_task,
)
from tests.fakes.voices import identity

BOSS, OTHER = identity("coordinator"), identity("other")
RUN, TASK = "1" * 32, "a" * 64
MADE = Assigning(RUN, 7, "e" * 32, "a" * 32, TASK)
CALL = Calling(RUN, 7, TASK, "c" * 64, OpinionMode.REPORT, 3)
SAID = {"site": "home", "run": RUN, "task": TASK}


def claim(by: str = "coordinator", until_s: int = 1000) -> TaskClaim:
    return sign_task(**SAID, until_s=until_s, certificate=b"der", sign=identity(by).sign)


def test_what_the_coordinator_signed_is_its_word() -> None:
    assert is_task_claim(claim(), BOSS.public_bytes, **SAID)
    assert claim().certificate == b"der"


@pytest.mark.parametrize("change", [{"site": "x"}, {"run": "2" * 32}, {"task": "b" * 64}], ids=str)
def test_of_another_site_run_or_task_it_is_none(change: dict[str, str]) -> None:
    assert not is_task_claim(claim(), BOSS.public_bytes, **{**SAID, **change})


def test_nobody_else_signs_it_and_nobody_makes_it_last_longer() -> None:
    assert not is_task_claim(claim("other"), BOSS.public_bytes, **SAID)
    assert not is_task_claim(claim(), OTHER.public_bytes, **SAID)
    longer = TaskClaim(certificate=b"der", until_s=2000, signature=claim().signature)
    assert not is_task_claim(longer, BOSS.public_bytes, **SAID)


def test_outside_of_a_site_nothing_is_signed() -> None:
    assert NobodyVouches().task(RUN, TASK) is None
    assert NobodyVouches().assignment(MADE) == b""
    assert NobodyVouches().call(CALL) == b""


def test_an_assignment_is_of_a_site_and_of_all_that_it_names() -> None:
    names = {"run": "2" * 32, "round": 8, "edge": "f" * 32, "agent": "b" * 32, "task": "b" * 64}
    others = [MADE._replace(**{name: value}) for name, value in names.items()]  # type: ignore[arg-type]
    texts = {made_bytes("home", made) for made in (MADE, *others)}
    assert len(texts | {made_bytes("away", MADE)}) == 7


def test_a_call_is_of_a_site_and_of_all_that_it_names() -> None:
    names = {"run": "2" * 32, "round": 8, "task": "b" * 64, "model": "d" * 64, "slot": 4}
    changes: list[dict[str, object]] = [{name: value} for name, value in names.items()]
    changes.append({"mode": OpinionMode.PEERS})
    texts = {made_bytes("home", CALL._replace(**change)) for change in changes}  # type: ignore[arg-type]
    assert len(texts | {made_bytes("home", CALL), made_bytes("away", CALL)}) == 8
    assert made_bytes("home", MADE) not in texts
