"""The real process with a real broker; the test plays an edge by hand through a link."""

import asyncio
import json
import logging
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import pytest
from msgspec.structs import replace

from fedagent_coordinator.__main__ import run
from fedagent_coordinator.books.reader import open_reader
from fedagent_coordinator.books.store import Store
from fedagent_coordinator.config import CoordinatorConfig
from fedagent_coordinator.daemon import level_of, words_of
from fedagent_node.address import BrokerAddress
from fedagent_node.data_dir import hold_data_dir, load_or_create
from fedagent_node.link import Arrival, Link
from fedagent_protocol import messages as m
from fedagent_protocol import topics
from fedagent_protocol.codec import Direction
from fedagent_task.recipe.text import parse_recipe
from tests.fakes.coordinator_site import RECIPE, Site, recipe, toy_edges
from tests.fakes.toy_edge import ToyEdge, declined
from tests.fakes.voices import Voice, read, voice

Event = dict[str, object]
LIMIT_S = 600.0
AGENTS: dict[str, Voice] = {}
"""Those of toy edges, by id."""


@dataclass
class Process:
    """A coordinator as a child process; its events are read as they come."""

    child: asyncio.subprocess.Process
    events: list[Event] = field(default_factory=list)

    async def until(self, name: str) -> Event:
        """Return the first event of that name that has not been read yet."""
        assert self.child.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            while line := await self.child.stdout.readline():
                event: Event = json.loads(line)
                self.events.append(event)
                if event["event"] == name:
                    return event
        pytest.fail(f"no event {name}; there were {self.events}")

    async def ended(self) -> int:
        """Return the exit code."""
        assert self.child.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            while line := await self.child.stdout.readline():
                self.events.append(json.loads(line))
            return await self.child.wait()


def config_of(folder: Path) -> Event:
    path = folder / "toy.toml"
    path.write_text(RECIPE)
    return {
        "data_dir": str(folder / "data"),
        "recipe": str(path),
        "broker": "embedded",
        "discovery": "off",
        "json_events": True,
        "linger_s": 0.5,
    }


@asynccontextmanager
async def coordinator(folder: Path, **changes: object) -> AsyncIterator[Process]:
    config = {**config_of(folder), "watch_parent": True, **changes}
    with (folder / "log.txt").open("ab") as log:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "fedagent_coordinator",
            "--config",
            json.dumps(config),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    process = Process(child)
    try:
        yield process
    finally:
        if child.returncode is None:
            child.kill()
            await process.ended()
        # asyncio leaves the pipe to the collector otherwise.
        assert child.stdin is not None
        child.stdin.close()


class HandEdge:
    """A toy edge on a real link."""

    def __init__(self, toy: ToyEdge, address: str, *, knows: Self | None = None) -> None:
        self.toy = toy
        self.head: m.LedgerHead | None = None if knows is None else knows.head
        self.newest: tuple[str, int] = ("", 0) if knows is None else knows.newest
        self.voice = voice("toy edge")
        toy.id = self.voice.id
        with_keys(toy)
        self.link = Link(
            BrokerAddress.parse(address),
            client_id=f"e-{toy.id}",
            on_arrivals=self._arrived,
            on_state=lambda _up: None,
        )

    async def __aenter__(self) -> Self:
        subscribed = self.link.subscribe(*topics.edge_wan_filters("default", self.toy.id))
        await self.link.start()
        await subscribed
        self._beat = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._beat.cancel()
        await asyncio.gather(self._beat, return_exceptions=True)
        await self.link.stop()

    def say(self, message: m.EdgeToCoordinator) -> None:
        if isinstance(message, m.RoundReport):
            message = self.proved(message)
        if isinstance(message, m.EdgeHello):
            run, newest = self.newest
            message = replace(message, run=run, round=newest, head=self.head)
        topic = topics.edge_up("default", self.toy.id, m.kind(message))
        self.link.publish(topic, self.voice.seal(topic, message))

    def proved(self, report: m.RoundReport) -> m.RoundReport:
        """Return a report with the signatures of its agents."""
        about: dict[str, Any] = {
            "run": report.run,
            "round_": report.round,
            "edge": self.toy.id,
            "task": self.task,
        }
        return replace(
            report,
            outcomes=tuple(AGENTS[one.agent].prove(one, **about) for one in report.outcomes),
        )

    def _arrived(self, batch: list[Arrival]) -> None:
        for arrival in batch:
            message = read(Direction.COORDINATOR_TO_EDGE, arrival.payload)
            if isinstance(message, m.RoundOrder):
                self.task, self.newest = message.task, (message.run, message.round)
            if isinstance(message, m.EdgeWelcome | m.ReportReceipt):
                self.head = message.head
            for answer in self.toy.receive(
                cast("m.CoordinatorToEdge", message), asyncio.get_running_loop().time()
            ):
                self.say(answer)

    async def _tick(self) -> None:
        while True:
            for message in self.toy.tick(asyncio.get_running_loop().time()):
                self.say(message)
            await asyncio.sleep(0.05)


def toy() -> ToyEdge:
    return with_keys(toy_edges(parse_recipe(RECIPE))[0])


def with_keys(edge: ToyEdge) -> ToyEdge:
    for agent in edge.agents:
        if agent.id not in AGENTS:
            said = voice(agent.id)
            AGENTS[said.id], agent.id = said, said.id
    return edge


async def test_what_no_agent_has_signed_is_not_paid_and_not_merged(tmp_path: Path) -> None:
    """A ghost edge that invents what agents did earns nothing."""
    async with coordinator(tmp_path) as process:
        ready = await process.until("ready")
        async with HandEdge(toy(), str(ready["broker"])) as edge:
            edge.proved = lambda report: report  # type: ignore[method-assign]
            end = await process.until("end")
            assert (end["rounds_done"], end["spent_micro"], end["updates_used"]) == (4, 0, 0)
            assert end["ledger_balanced"] is True
            assert await process.ended() == 0
    with open_reader(tmp_path / "data") as reader:
        run = reader.run().run_id
        assert {row.failed for row in reader.edge_results(run)} == {"bad_claim"}
        assert {(row.status, row.reason) for row in reader.outcomes(run)} == {
            ("rejected", "bad_claim")
        }


async def test_a_run_that_learnt_nothing_ends_with_a_warning(tmp_path: Path) -> None:
    given = toy()
    reason = "schema: csv: there is no such file; check the path"
    for agent in given.agents:
        agent.outcome = declined(agent.id, reason)
    async with coordinator(tmp_path, sets=["rounds.count=2"]) as process:
        ready = await process.until("ready")
        async with HandEdge(given, str(ready["broker"])):
            assert (await process.until("end"))["updates_used"] == 0
            assert await process.ended() == 0
    log = (tmp_path / "log.txt").read_text().splitlines()
    assert "WARNING NOTHING WAS LEARNT: none of the 2 rounds used an update" in log[-1]
    assert any("WARNING round: round=1 " in line and reason in line for line in log)
    with Store(tmp_path / "data") as store:
        rows = store.read.rounds(store.read.run().run_id)
    assert {row.reason for row in rows} == {f"{row.ordered} declined ({reason})" for row in rows}


async def test_it_ends_cleanly_at_a_signal(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as process:
        await process.until("waiting")
        process.child.send_signal(signal.SIGTERM)
        assert await process.ended() == 0


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def code(**changes: object) -> int:
        told = json.dumps({**config_of(tmp_path), **changes})
        return run(CoordinatorConfig.load(told, {}))

    data, given = tmp_path / "data", recipe("rounds.count=1")
    assert code(recipe=str(tmp_path / "missing.toml")) == 2
    assert code(policy="nobody") == 34
    assert code(sets=["evaluation.dataset=missing.npz"]) == 36
    with hold_data_dir(data):
        assert code() == 75
    site = Site(data, given, toy_edges(given), identity=load_or_create(data))
    site.open()
    site.close()
    assert code(seed=99) == 31
    assert "--new-run" in capsys.readouterr().err
    site.run()
    site.close()
    assert code(sets=["rounds.count=1"]) == 0
    finished = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (finished["event"], finished["rounds_done"]) == ("finished", 1)


@pytest.mark.parametrize(
    ("name", "fields", "level"),
    [
        ("opinions", {"mode": "report", "answered": 0}, logging.WARNING),
        ("opinions", {"mode": "peers", "volunteers": 2}, logging.INFO),
        ("round", {"used": 0}, logging.WARNING),
        ("edge_lost", {"edge": "e"}, logging.WARNING),
    ],
)
def test_an_event_is_as_loud_as_it_matters(
    name: str, fields: dict[str, object], level: int
) -> None:
    assert level_of(name, fields) == level


def test_the_log_says_why_opinions_are_missing() -> None:
    said = words_of("opinions", {"asked": 6, "missing": {"unsigned": 3, "gone": 1}})
    assert said == "opinions: asked=6 missing=3 unsigned, 1 gone"
