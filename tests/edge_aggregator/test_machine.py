"""Whatever happens to an edge, in any order: a round ends once, an update has one receipt, and the
model is the weighted mean of what was used."""

import random
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fedagent_edge.core.effects import LAN
from fedagent_node.effects import LinkUp, Revoked, TakenOver
from fedagent_protocol import messages as m
from fedagent_protocol.tensors import Manifest, decode_tensors
from tests.world.kill_points import POINTS

from .harness import RUN, Field, ToyAgent, delta, model_tensors

NAMES = ["a0", "a1", "a2"]
agents = st.sampled_from(NAMES)


class Edge(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**16), size=st.sampled_from([64, 80_000]))
    def begin(self, seed: int, size: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        toys = {n: ToyAgent(n, size=size, samples=10 * (1 + i)) for i, n in enumerate(NAMES)}
        self.field = Field(Path(self.folder.name), toys, size=size).ready()
        self.field.lossy = random.Random(seed)
        self.size, self.number, self.checked = size, 0, 0
        self.told: dict[int, tuple[object, ...]] = {}
        self.models: dict[str, dict[str, np.ndarray]] = {self.field.digest: model_tensors(size)}

    @rule(enough=st.integers(1, 3))
    def order(self, enough: int) -> None:
        self.number += 1
        self.again(enough)

    @rule(enough=st.integers(1, 3))
    def again(self, enough: int) -> None:
        self.field.order(self.number, deadline_ms=3000, max_wait_ms=6000, min_updates=enough)

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, 4.0, 9.0]))
    def wait(self, seconds: float) -> None:
        self.field.run_for(seconds)

    @rule(point=st.sampled_from(sorted(POINTS["edge"])), nth=st.integers(1, 3))
    def die(self, point: str, nth: int) -> None:
        self.field.kill_at, self.field.kill_nth = f"edge.{point}", nth

    @rule()
    def open_next(self) -> None:
        self.field.coordinator(m.RoundOpen(run=RUN, round=self.number + 1))

    @rule(agent=agents, how=st.sampled_from([m.Bye(), m.Gone()]))
    def leave(self, agent: str, how: m.AnyMessage) -> None:
        self.field.to_edge(agent, how)

    @rule(agent=agents)
    def come(self, agent: str) -> None:
        self.field.agents[agent].hello(self.field)

    @rule(agent=agents)
    def revoke(self, agent: str) -> None:
        self.field._try(lambda: self.field.edge.receive(Revoked(1, frozenset({agent}), b"list")))

    @rule(agent=agents)
    def reconnect(self, agent: str) -> None:
        self.field._try(lambda: self.field.edge.receive(TakenOver(agent), LinkUp(LAN)))

    @invariant()
    def rounds_end_once_in_their_mean(self) -> None:
        fresh, self.checked = self.field.reports[self.checked :], len(self.field.reports)
        for report in fresh:
            ends = tuple((o.agent, o.status, o.valid, o.used) for o in report.outcomes)
            told = (report.failed, report.model, report.weight, ends)
            assert self.told.setdefault(report.round, told) == told
            used = {o.agent: o.weight for o in report.outcomes if o.used}
            assert report.used == len(used)
            if used and report.model not in self.models:
                self.models[report.model] = self._mean(report, used)

    def _mean(self, report: m.RoundReport, used: dict[str, float]) -> dict[str, np.ndarray]:
        orders = [one for toy in self.field.agents.values() for one in toy.orders]
        base = self.models[next(one.model for one in orders if one.round == report.round)]
        body = self.field.model_bytes(report.model)
        found = decode_tensors(body, Manifest.of(base))
        for name, before in base.items():
            moves = sum(w * delta(agent, self.size)[name] for agent, w in used.items())
            assert np.allclose(found[name], before + moves / sum(used.values()), atol=1e-5)
        return found

    @invariant()
    def one_word_on_each_update(self) -> None:
        ends = {
            (report.round, one.agent): one.status
            for report in self.field.reports
            for one in report.outcomes
        }
        paid = {m.ReceiptStatus.ACCEPTED: "arrived", m.ReceiptStatus.LATE: "late"}
        for toy in self.field.agents.values():
            words: dict[int, set[m.ReceiptStatus]] = {}
            for one in toy.receipts:
                if one.status is not m.ReceiptStatus.EXPIRED:
                    words.setdefault(one.round, set()).add(one.status)
            assert all(len(one) == 1 for one in words.values()), words
            for number, (word,) in words.items():
                if word in paid and (number, toy.id) in ends:
                    assert ends[number, toy.id] == paid[word]

    @invariant()
    def memory_is_bounded(self) -> None:
        updates = self.field.core.rounds.updates
        assert updates.uploads.pool.used_bytes <= updates.uploads.pool.limit_bytes
        assert len(self.field.core.exchange._out) <= 3
        assert len(list((self.field.directory / "spool").glob("*.update"))) <= len(NAMES)

    def teardown(self) -> None:
        field = self.field
        field.lossy, field.kill_at = None, ""
        for toy in field.agents.values():
            toy.hello(field)
        field.run_for(20.0)
        self.rounds_end_once_in_their_mean()
        self.one_word_on_each_update()
        assert not field.core.urgent(), "something is open for good"
        assert field.core.rounds.updates.uploads.pool.used_bytes == 0
        self.folder.cleanup()


TestEdge = Edge.TestCase
TestEdge.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
