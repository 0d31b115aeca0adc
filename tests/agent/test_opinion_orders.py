"""Calls, orders, losses and restarts in whatever order: what the evaluator never does."""

import tempfile
from collections import defaultdict
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs

from fedagent_agent.core.effects import Subscribed, SubscribeModel
from fedagent_agent.core.opinions import PrivacySettings
from fedagent_agent.trainer.frames import Evaluate, Open
from fedagent_node.effects import LinkDown, LinkUp, Send
from fedagent_protocol.messages import (
    Chunk,
    EdgeBeacon,
    Opinion,
    TaskBody,
    TaskNeed,
    Welcome,
)
from fedagent_task.recipe import task_bytes, task_digest
from fedagent_task.spec import OpinionsSpec
from tests.fakes.hand_edge import (
    EDGE,
    LINK,
    OTHER,
    REAL,
    RUN,
    HandEdge,
    Outward,
    digest_of,
    joined,
    model_of,
)

PIECE = 1024
MODELS = [model_of(2500, mark) for mark in range(3)]
TASK = structs.replace(REAL, opinions=OpinionsSpec(epsilon=1.0))
TASKS = (TASK, structs.replace(TASK, opinions=OpinionsSpec(epsilon=0.5)))
RUNS = (RUN, "2" * 32)
TOTAL = 3.0
EDGES = st.sampled_from([EDGE, OTHER])


class EvaluatorUnderFire(RuleBasedStateMachine):
    """An agent between two edges that call, order, lose, repeat and reorder everything."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        limits = PrivacySettings(max_epsilon=1.0, total_epsilon=TOTAL)
        folder = Path(self.folder.name)
        self.edge = HandEdge(folder, chunk_bytes=PIECE, task=TASK, privacy=limits)
        self.subscriptions: list[SubscribeModel] = []
        self.opening: list[Open] = []
        self.evaluating: dict[int, Evaluate] = {}
        self.called: set[tuple[str, str, int]] = set()
        self.told: dict[tuple[str, int], set[Opinion]] = defaultdict(set)
        self.newest: dict[str, int] = {}
        self.score = 0

    def teardown(self) -> None:
        self.edge.store.close()
        self.folder.cleanup()

    @initialize()
    def join(self) -> None:
        for name in (EDGE, OTHER):
            self.take(self.edge.say(EdgeBeacon(edge=name), edge=name))
            self.take(self.edge.say(Welcome(edge=name), edge=name))

    def take(self, outward: list[Outward]) -> None:
        """Check each effect as it comes."""
        for effect in outward:
            match effect:
                case Send(message=Opinion() as said):
                    name = effect.to
                    assert (name, said.run, said.round) in self.called
                    assert said.round >= self.newest.get(said.run, 0), "an older round after all"
                    self.newest[said.run] = said.round
                    if said.samples:
                        self.told[said.run, said.round].add(said)
                case SubscribeModel():
                    self.subscriptions.append(effect)
                case Open():
                    self.opening.append(effect)
                case Evaluate():
                    call = self.edge.core.evaluator.pending
                    assert call is not None
                    assert Path(effect.model).read_bytes() == self.edge.models[call.call.model]
                    self.evaluating[effect.job] = effect

    @rule(
        name=EDGES,
        number=st.integers(0, 4),
        run=st.sampled_from(RUNS),
        task=st.sampled_from(TASKS),
    )
    def call(self, name: str, number: int, run: str, task: object) -> None:
        self.edge.task = task  # type: ignore[assignment]  # one of TASKS
        self.called.add((name, run, number))
        self.take(self.edge.call(number, MODELS[number % 3], run=run, edge=name))

    @rule(name=EDGES, number=st.integers(1, 4), run=st.sampled_from(RUNS))
    def order(self, name: str, number: int, run: str) -> None:
        self.take(self.edge.order(number, MODELS[(number + 1) % 3], run=run, edge=name))

    @precondition(lambda self: self.subscriptions)
    @rule()
    def suback(self) -> None:
        sub = self.subscriptions.pop(0)
        self.take(self.edge.take(Subscribed(sub.edge, sub.digest)))

    @precondition(lambda self: self.edge.said(TaskNeed))
    @rule(name=EDGES)
    def task(self, name: str) -> None:
        digest = self.edge.said(TaskNeed)[-1].digest
        body = next(body for body in map(task_bytes, TASKS) if task_digest(body) == digest)
        self.take(self.edge.say(TaskBody(run=RUN, digest=digest, body=body), edge=name))

    @precondition(lambda self: self.opening)
    @rule(fits=st.booleans())
    def opened(self, fits: bool) -> None:
        job = self.opening.pop()
        self.take(self.edge.opened(job) if fits else self.edge.failed(job, "died"))

    @rule(name=EDGES, model=st.sampled_from(MODELS), indices=st.lists(st.integers(0, 2)))
    def chunks(self, name: str, model: bytes, indices: list[int]) -> None:
        for index in indices:
            data = model[index * PIECE : (index + 1) * PIECE]
            chunk = Chunk(run=RUN, round=1, digest=digest_of(model), index=index, data=data)
            self.take(self.edge.say(chunk, edge=name))

    @precondition(lambda self: self.evaluating)
    @rule(data=st.data(), outcome=st.sampled_from(["score", "nothing", "died"]))
    def evaluated(self, data: st.DataObject, outcome: str) -> None:
        start = self.evaluating.pop(data.draw(st.sampled_from(sorted(self.evaluating))))
        self.score += 1
        if outcome == "died":
            self.take(self.edge.failed(start, "died"))
            return
        samples = 7 if outcome == "score" else 0
        self.take(self.edge.evaluate(start, self.score / 1e6, samples=samples, epsilon=1.0))

    @rule(seconds=st.sampled_from([0.01, 1.0, 4.0, 25.0]))
    def wait(self, seconds: float) -> None:
        self.take(self.edge.later(seconds))

    @rule()
    def reconnect(self) -> None:
        self.take(self.edge.take(LinkDown(LINK)))
        self.take(self.edge.take(LinkUp(LINK)))
        self.join()

    @rule()
    def restart(self) -> None:
        self.edge.restart()
        self.subscriptions, self.opening, self.evaluating = [], [], {}
        self.newest = {}
        self.join()

    # -------------------------------------------------------------- invariants

    @invariant()
    def a_round_has_one_opinion_for_ever(self) -> None:
        assert all(len(said) == 1 for said in self.told.values())

    @invariant()
    def the_owners_budget_holds(self) -> None:
        spent = self.edge.core.evaluator.spent
        for run in RUNS:
            told = sum(1 for of, _ in self.told if of == run)
            assert told <= spent.get(run, 0.0) <= TOTAL

    @invariant()
    def one_model_comes_in_at_a_time(self) -> None:
        core = self.edge.core
        fetches = (core.queue.fetch, core.evaluator.fetch)
        assert not all(fetch is not None and fetch.loading for fetch in fetches)

    @invariant()
    def a_tick_leaves_nothing_due(self) -> None:
        now = self.edge.now
        self.take(self.edge.tick())
        due = self.edge.driver.next_due()
        assert due is None or due > now


EvaluatorUnderFire.TestCase.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None
)
TestEvaluatorUnderFire = EvaluatorUnderFire.TestCase


@settings(max_examples=60, deadline=None)
@given(losses=st.lists(st.booleans(), max_size=40), order_at=st.integers(0, 6))
def test_whoever_asks_often_enough_has_an_answer(losses: list[bool], order_at: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        edge = joined(Path(folder), chunk_bytes=PIECE, task=REAL)
        lost = iter(losses)

        def serve(out: list[Outward]) -> None:
            """Answer all but what is lost on the way to the edge."""
            for effect in out:
                if isinstance(effect, Send) and next(lost, False):
                    continue
                before = len(edge.out)
                edge.serve([effect], MODELS[1])
                if isinstance(effect, Evaluate):
                    edge.evaluate(effect, 0.5)
                for start in edge.jobs(Evaluate, edge.out[before:]):
                    edge.evaluate(start, 0.5)

        for second in range(60):
            if second == order_at:
                serve(edge.order(2, MODELS[1], give_up_ms=9000))
            serve(edge.call(1, MODELS[0]))
            if edge.said(Opinion):
                break
            serve(edge.later(1.0))
            edge.say(EdgeBeacon(edge=EDGE))
        assert {opinion.samples for opinion in edge.said(Opinion)} == {7}
        edge.store.close()
