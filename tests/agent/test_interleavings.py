"""Whatever comes, in whatever order and however often: what an agent and its evaluator never do."""

import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs

from fedagent_agent.core.effects import Subscribed, SubscribeModel
from fedagent_agent.core.opinions import PrivacySettings
from fedagent_agent.trainer.frames import Cancel, Evaluate, Open, Train
from fedagent_node.effects import LinkDown, LinkUp, Send
from fedagent_protocol.codec import Direction, decode, encode
from fedagent_protocol.messages import (
    Chunk,
    Decline,
    EdgeBeacon,
    EdgeToAgent,
    Need,
    Opinion,
    RoundClosed,
    TaskBody,
    TaskNeed,
    UpdateOffer,
    Welcome,
)
from fedagent_protocol.transfer import Layout
from fedagent_task.recipe.spec import OpinionsSpec, TaskSpec
from fedagent_task.recipe.text import task_bytes, task_digest
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
RUNS = (RUN, "2" * 32)
MODELS = [model_of(4500, mark) for mark in range(2)]
UPDATE = bytes(range(200)) * 12
Order = tuple[str, str, int]
EDGES = st.sampled_from([EDGE, OTHER])


class UnderFire(RuleBasedStateMachine):
    """An agent between two edges that lose, repeat and reorder everything."""

    tasks: tuple[TaskSpec, ...] = (REAL,)

    def __init__(self, **fields: Any) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        folder = Path(self.folder.name)
        self.edge = HandEdge(folder, chunk_bytes=PIECE, task=self.tasks[0], **fields)
        self.subscribed: set[tuple[str, str]] = set()
        self.subscriptions: list[SubscribeModel] = []
        self.opening: list[Open] = []

    def teardown(self) -> None:
        self.edge.store.close()
        self.folder.cleanup()

    @initialize()
    def join(self) -> None:
        for name in (EDGE, OTHER):
            self.beacon(name)

    def say(self, message: EdgeToAgent, name: str) -> list[Outward]:
        return self.edge.say(message, edge=name)

    def take(self, outward: list[Outward]) -> None:
        """Check each effect as it comes."""
        for effect in outward:
            match effect:
                case SubscribeModel():
                    self.subscriptions.append(effect)
                case Open():
                    self.opening.append(effect)
                case _:
                    self.took(effect)

    def took(self, effect: Outward) -> None:
        raise NotImplementedError

    @precondition(lambda self: self.subscriptions)
    @rule()
    def suback(self) -> None:
        sub = self.subscriptions.pop(0)
        self.subscribed.add((sub.edge, sub.digest))
        self.take(self.edge.take(Subscribed(sub.edge, sub.digest)))

    @precondition(lambda self: self.edge.said(TaskNeed))
    @rule(name=EDGES)
    def task(self, name: str) -> None:
        digest = self.edge.said(TaskNeed)[-1].digest
        body = next(body for body in map(task_bytes, self.tasks) if task_digest(body) == digest)
        self.take(self.say(TaskBody(run=RUN, digest=digest, body=body), name))

    @rule(seconds=st.sampled_from([0.01, 1.0, 4.0, 25.0]), busy=st.sampled_from([0, 5000]))
    def wait(self, seconds: float, busy: int) -> None:
        self.edge.pending = busy
        self.take(self.edge.later(seconds))

    @rule()
    def reconnect(self) -> None:
        self.take(self.edge.take(LinkDown(LINK)))
        self.take(self.edge.take(LinkUp(LINK)))

    @rule(name=EDGES)
    def beacon(self, name: str) -> None:
        self.take(self.say(EdgeBeacon(edge=name), name))
        self.take(self.say(Welcome(edge=name), name))

    @invariant()
    def a_tick_leaves_nothing_due(self) -> None:
        """Otherwise the daemon's timer would spin."""
        now = self.edge.now
        self.take(self.edge.tick())
        due = self.edge.driver.next_due()
        assert due is None or due > now


class AgentUnderFire(UnderFire):
    """Orders."""

    def __init__(self) -> None:
        super().__init__()
        self.training: dict[int, tuple[Train, Order]] = {}
        self.trainings: Counter[Order] = Counter()
        self.answers: dict[Order, set[str]] = {}
        self.ordered: set[Order] = set()
        self.credit: Counter[tuple[str, int]] = Counter()
        self.delivered: dict[tuple[str, str], set[int]] = {}

    # ------------------------------------------------------- what the agent did

    def took(self, effect: Outward) -> None:
        match effect:
            case Send():
                payload = encode(effect.message)
                assert decode(Direction.AGENT_TO_EDGE, payload) == effect.message
                self.published(effect.to, effect.message)
            case Train():
                work = self.edge.core.queue.active_order
                assert work is not None
                order = (work.key.edge, work.key.run, work.key.round)
                assert not [j for j, (_, o) in self.training.items() if j not in self.dead()]
                self.trainings[order] += 1
                self.training[effect.job] = (effect, order)

    def dead(self) -> set[int]:
        return {effect.job for effect in self.edge.jobs(Cancel)}

    def published(self, name: str, message: object) -> None:
        match message:
            case Decline():
                self.answers.setdefault((name, message.run, message.round), set()).add("decline")
            case UpdateOffer():
                self.answers.setdefault((name, message.run, message.round), set()).add("update")
                assert message.first == b"" or message.first == UPDATE[:PIECE]
            case Chunk():
                key = (message.digest, message.index)
                assert self.credit[key] > 0, "a chunk without credit"
                start, stop = Layout(len(UPDATE), PIECE).span(message.index)
                assert message.data == UPDATE[start:stop]
            case Need():
                here = self.delivered.get((name, message.digest), set())
                wanted = {i for a, b in message.ranges for i in range(a, b)}
                assert not wanted & here, "asked for a chunk it has"
                assert wanted <= set(range(Layout(len(MODELS[0]), PIECE).count))
                assert (name, message.digest) in self.subscribed

    # ------------------------------------------------------------------- rules

    @rule(
        name=EDGES,
        number=st.integers(1, 4),
        model=st.sampled_from(MODELS),
        run=st.sampled_from(RUNS),
        credit=st.integers(0, 1),
    )
    def order(self, name: str, number: int, model: bytes, run: str, credit: int) -> None:
        before = self.edge.core.queue.active_order
        out = self.edge.order(number, model, run=run, edge=name, credit=credit)
        after = self.edge.core.queue.active_order
        if after is not before and after is not None:
            self.delivered.clear()
        self.ordered.add((name, run, number))
        self.take(out)

    @precondition(lambda self: self.opening)
    @rule()
    def opened(self) -> None:
        opening = self.opening.pop()
        self.take(self.edge.opened(opening))

    @rule(
        name=EDGES,
        model=st.sampled_from(MODELS),
        index=st.integers(0, 5),
        spoilt=st.booleans(),
    )
    def chunk(self, name: str, model: bytes, index: int, spoilt: bool) -> None:
        data = model[index * PIECE : (index + 1) * PIECE]
        data = data[:-1] if spoilt and data else data
        digest = digest_of(model)
        work = self.edge.core.queue.active_order
        wanted = (
            work is not None
            and work.key.edge == name
            and work.fetch.loading
            and work.order.model == digest
        )
        if wanted and not spoilt and index < Layout(len(model), PIECE).count:
            self.delivered.setdefault((name, digest), set()).add(index)
        self.take(self.say(Chunk(run=RUN, round=1, digest=digest, index=index, data=data), name))

    @precondition(lambda self: self.training)
    @rule(data=st.data(), fails=st.booleans())
    def trained(self, data: st.DataObject, fails: bool) -> None:
        job = data.draw(st.sampled_from(sorted(self.training)))
        start, _ = self.training.pop(job)
        if fails:
            self.take(self.edge.failed(start, "died"))
        else:
            self.take(self.edge.train(start, UPDATE))

    @precondition(lambda self: self.edge.said(UpdateOffer))
    @rule(data=st.data(), first=st.integers(0, 3), count=st.integers(1, 2))
    def need(self, data: st.DataObject, first: int, count: int) -> None:
        offer = data.draw(st.sampled_from(self.edge.said(UpdateOffer)))
        name = data.draw(EDGES)
        for index in range(first, first + count):
            self.credit[offer.digest, index] += 1
        ranges = ((first, first + count),)
        need = Need(run=offer.run, round=offer.round, digest=offer.digest, ranges=ranges)
        self.take(self.say(need, name))

    @precondition(lambda self: self.edge.said(UpdateOffer))
    @rule(data=st.data())
    def receipt(self, data: st.DataObject) -> None:
        self.take(self.edge.receipt(data.draw(st.sampled_from(self.edge.said(UpdateOffer)))))

    @rule(name=EDGES, number=st.integers(1, 4), run=st.sampled_from(RUNS))
    def closed(self, name: str, number: int, run: str) -> None:
        self.take(self.say(RoundClosed(run=run, round=number), name))

    # -------------------------------------------------------------- invariants

    @invariant()
    def no_order_is_trained_twice(self) -> None:
        assert all(count == 1 for count in self.trainings.values())

    @invariant()
    def no_round_of_a_run_is_trained_for_two_edges(self) -> None:
        ranks = Counter((run, number) for _, run, number in self.trainings)
        assert all(count == 1 for count in ranks.values())

    @invariant()
    def every_order_gets_one_class_of_answer(self) -> None:
        assert all(len(classes) == 1 for classes in self.answers.values())
        assert self.answers.keys() <= self.ordered

    @invariant()
    def no_order_is_forgotten(self) -> None:
        """An order was answered, is worked on, or its round is known to be over."""
        work = self.edge.core.queue.active_order
        working = (work.key.edge, work.key.run, work.key.round) if work is not None else None
        over = {(str(e["edge"]), int(str(e["round"]))) for e in self.edge.events("abandoned")}
        told = {(str(e["edge"]), int(str(e["round"]))) for e in self.edge.events("update")}
        for order in self.ordered:
            known = order in self.answers or order == working
            assert known or (order[0], order[2]) in over | told


AgentUnderFire.TestCase.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)
TestAgentUnderFire = AgentUnderFire.TestCase


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=40))
def test_a_model_arrives_through_any_loss_and_repetition(events: list[tuple[int, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        edge = joined(Path(folder), chunk_bytes=PIECE)
        model = MODELS[0]
        out = edge.order(1, model)
        edge.serve([e for e in out if not isinstance(e, SubscribeModel)], model)
        edge.take(Subscribed(EDGE, digest_of(model)))
        count = Layout(len(model), PIECE).count
        for index, twice in events:
            for _ in range(1 + twice):
                piece = model[index * PIECE : (index + 1) * PIECE]
                if index < count:
                    edge.say(Chunk(run=RUN, digest=digest_of(model), index=index, data=piece))
        for _ in range(20):
            if edge.said(UpdateOffer):
                break
            edge.serve(edge.later(2.0), model)
            edge.say(EdgeBeacon(edge=EDGE))
        assert edge.said(UpdateOffer)
        edge.store.close()


# ------------------------------------------------------------------- evaluations

SCORED = [model_of(2500, mark) for mark in range(3)]
TASK = structs.replace(REAL, opinions=OpinionsSpec(epsilon=1.0))
TASKS = (TASK, structs.replace(TASK, opinions=OpinionsSpec(epsilon=0.5)))
TOTAL = 3.0


class EvaluatorUnderFire(UnderFire):
    """Calls and orders, and restarts."""

    tasks = TASKS

    def __init__(self) -> None:
        super().__init__(privacy=PrivacySettings(max_epsilon=1.0, total_epsilon=TOTAL))
        self.evaluating: dict[int, Evaluate] = {}
        self.called: set[tuple[str, str, int]] = set()
        self.told: dict[tuple[str, int], set[Opinion]] = defaultdict(set)
        self.newest: dict[str, int] = {}
        self.score = 0

    def took(self, effect: Outward) -> None:
        match effect:
            case Send(message=Opinion() as said):
                name = effect.to
                assert (name, said.run, said.round) in self.called
                assert said.round >= self.newest.get(said.run, 0), "an older round after all"
                self.newest[said.run] = said.round
                if said.samples:
                    self.told[said.run, said.round].add(said)
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
        self.take(self.edge.call(number, SCORED[number % 3], run=run, edge=name))

    @rule(name=EDGES, number=st.integers(1, 4), run=st.sampled_from(RUNS))
    def order(self, name: str, number: int, run: str) -> None:
        self.take(self.edge.order(number, SCORED[(number + 1) % 3], run=run, edge=name))

    @precondition(lambda self: self.opening)
    @rule(fits=st.booleans())
    def opened(self, fits: bool) -> None:
        job = self.opening.pop()
        self.take(self.edge.opened(job) if fits else self.edge.failed(job, "died"))

    @rule(name=EDGES, model=st.sampled_from(SCORED), indices=st.lists(st.integers(0, 2)))
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
                edge.serve([effect], SCORED[1])
                if isinstance(effect, Evaluate):
                    edge.evaluate(effect, 0.5)
                for start in edge.jobs(Evaluate, edge.out[before:]):
                    edge.evaluate(start, 0.5)

        for second in range(60):
            if second == order_at:
                serve(edge.order(2, SCORED[1], give_up_ms=9000))
            serve(edge.call(1, SCORED[0]))
            if edge.said(Opinion):
                break
            serve(edge.later(1.0))
            edge.say(EdgeBeacon(edge=EDGE))
        assert {opinion.samples for opinion in edge.said(Opinion)} == {7}
        edge.store.close()
