"""The queue of jobs: small ones at once, one after the other, never within another's effects."""

import asyncio
import threading
import time

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


async def test_a_job_is_at_work_until_it_ends() -> None:
    goes_on, over = threading.Event(), asyncio.Event()
    jobs = JobQueue(lambda _: over.set(), lambda _: None)
    assert jobs.longest(time.monotonic()) == ("", 0.0)
    jobs.submit(Job("commit", lambda: (goes_on.wait(10), Input())[1], small=False))
    await asyncio.sleep(0)
    name, seconds = jobs.longest(time.monotonic() + 5.0)
    assert name == "commit"
    assert 5.0 <= seconds < 8.0
    goes_on.set()
    await asyncio.wait_for(over.wait(), 10)
    await asyncio.sleep(0)
    assert jobs.longest(time.monotonic())[0] == ""
    jobs.close()
