"""The queue of jobs: small ones at once, one after the other, never within another's effects."""

import asyncio

import pytest

from fedagent_node.driver import Job
from fedagent_node.effects import Input
from fedagent_node.jobs import JobQueue


class Done(Input, frozen=True):
    name: str


def unexpected(what: object) -> None:
    pytest.fail(repr(what))


def job(name: str, *, small: bool = False) -> Job:
    return Job(name, lambda: Done(name), small)


async def test_what_waits_begins_after_the_effects_of_a_result() -> None:
    log: list[str] = []
    over = asyncio.Event()

    def done(result: Input) -> None:
        assert isinstance(result, Done)
        log.append(f"{result.name} begins")
        if result.name == "first":
            queue.submit(job("third"))
        log.append(f"{result.name} ends")
        if result.name == "third":
            over.set()

    queue = JobQueue(done, unexpected)
    assert queue.submit(job("first")) is None
    assert queue.submit(job("second", small=True)) is None
    await asyncio.wait_for(over.wait(), 10)
    queue.close()
    names = ("first", "second", "third")
    assert log == [f"{name} {what}" for name in names for what in ("begins", "ends")]


async def test_small_jobs_that_waited_do_not_nest() -> None:
    log: list[str] = []
    over = asyncio.Event()

    def done(result: Input) -> None:
        assert isinstance(result, Done)
        log.append(result.name)
        if result.name == "second":
            # It waits behind the third.
            assert queue.submit(job("fourth", small=True)) is None
            log.append("second ends")
        if result.name == "fourth":
            over.set()

    queue = JobQueue(done, unexpected)
    queue.submit(job("first"))
    queue.submit(job("second", small=True))
    queue.submit(job("third", small=True))
    await asyncio.wait_for(over.wait(), 10)
    queue.close()
    assert log == ["first", "second", "second ends", "third", "fourth"]


async def test_a_small_job_is_done_at_once() -> None:
    queue = JobQueue(unexpected, unexpected)
    assert queue.submit(job("only", small=True)) == Done("only")
    queue.close()
