"""Whatever comes, in whatever order and however often, and whenever it is killed: what an agent
never does."""

import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs

from fedagent_agent.core.opinions import PrivacySettings
from fedagent_agent.trainer.frames import Cancel, Evaluate, Open, Train
from fedagent_node.effects import LinkDown, LinkUp, Revoked, Send
from fedagent_protocol import messages as m
from fedagent_protocol.codec import Direction, decode, encode
from fedagent_protocol.transfer import Layout
from fedagent_task.recipe.spec import OpinionsSpec
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
    model_of,
)

PIECE = 1024
RUNS = (RUN, "2" * 32)
MODELS = [model_of(2500, mark) for mark in range(3)]
UPDATE = bytes(range(200)) * 12
TASKS = tuple(
    structs.replace(REAL, opinions=OpinionsSpec(epsilon=epsilon)) for epsilon in (1.0, 0.5)
)
TOTAL = 3.0
EDGES = st.sampled_from([EDGE, OTHER])
Order = tuple[str, str, int]


class UnderFire(RuleBasedStateMachine):
    """An agent between two edges that lose, repeat and reorder everything."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        limits = PrivacySettings(max_epsilon=1.0, total_epsilon=TOTAL)
        folder = Path(self.folder.name)
        self.edge = HandEdge(folder, chunk_bytes=PIECE, task=TASKS[0], privacy=limits)
        self.opening: list[Open] = []
        self.training: dict[int, tuple[Train, Order]] = {}
        self.trainings: Counter[Order] = Counter()
        self.answers: dict[Order, set[str]] = defaultdict(set)
        self.ordered: set[Order] = set()
        self.credit: Counter[tuple[str, int]] = Counter()
        self.receipted: set[tuple[str, str, int]] = set()
        self.evaluating: dict[int, Evaluate] = {}
        self.called: set[Order] = set()
        self.told: dict[tuple[str, int], set[m.Opinion]] = defaultdict(set)
        self.revoked = False
        self.score = 0

    def teardown(self) -> None:
        self.edge.store.close()
        self.folder.cleanup()

    @initialize()
    def join(self) -> None:
        for name in (EDGE, OTHER):
            self.beacon(name)

    # ------------------------------------------------------- what the agent did

    def say(self, message: m.EdgeToAgent, name: str) -> None:
        self.take(self.edge.say(message, edge=name))

    def take(self, outward: list[Outward]) -> None:
        """Check each effect as it comes."""
        for effect in outward:
            match effect:
                case Open():
                    self.opening.append(effect)
                case Send():
                    assert not (self.revoked and effect.to == OTHER)
                    message = effect.message
                    assert decode(Direction.AGENT_TO_EDGE, encode(message)) == message
                    self.published(effect.to, message)
                case Train():
                    work = self.edge.core.orders.active
                    assert work is not None
                    order: Order = work.key
                    cancelled = {cancel.job for cancel in self.edge.jobs(Cancel)}
                    assert self.training.keys() <= cancelled, "one training at a time"
                    self.trainings[order] += 1
                    self.training[effect.job] = (effect, order)
                case Evaluate():
                    call = self.edge.core.evaluator.pending
                    assert call is not None
                    assert Path(effect.model).read_bytes() == self.edge.models[call.call.model]
                    self.evaluating[effect.job] = effect

    def published(self, name: str, message: m.AnyMessage) -> None:
        of = (name, message.run, message.round)
        match message:
            case m.Decline():
                self.answers[of].add("decline")
            case m.UpdateOffer():
                self.answers[of].add("update")
                assert of not in self.receipted, "offered again after its receipt"
                assert UPDATE.startswith(message.first)
            case m.Chunk():
                chunks = Layout(len(UPDATE), PIECE).check(message.index, len(message.data))
                for index in chunks:
                    assert self.credit[message.digest, index] > 0, "a chunk without credit"
                assert UPDATE[PIECE * message.index :].startswith(message.data)
            case m.Opinion():
                assert of in self.called
                if message.samples:
                    self.told[message.run, message.round].add(message)

    # ------------------------------------------------------------------- rules

    @precondition(lambda self: self.edge.said(m.TaskNeed))
    @rule(name=EDGES)
    def task(self, name: str) -> None:
        need = self.edge.said(m.TaskNeed)[-1]
        body = next(b for b in map(task_bytes, TASKS) if task_digest(b) == need.digest)
        self.say(m.TaskBody(run=need.run, digest=need.digest, body=body), name)

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
        self.say(m.EdgeBeacon(edge=name), name)
        self.say(m.Welcome(edge=name), name)

    @rule(
        name=EDGES,
        number=st.integers(1, 4),
        run=st.sampled_from(RUNS),
        credit=st.integers(0, 1),
        made_in=st.integers(0, 2),
    )
    def order(self, name: str, number: int, run: str, credit: int, made_in: int) -> None:
        model, base = MODELS[number % 3], digest_of(MODELS[made_in % 3])
        if made_in:
            # Its edge has ended the rounds before, and may get their work with this one.
            self.ordered -= {(name, run, earlier) for earlier in range(number)}
        self.ordered.add((name, run, number))
        late = {"made_in": made_in, "made_from": base} if 0 < made_in < number else {}
        fields = {"run": run, "credit": credit, **late}
        self.take(self.edge.order(number, model, edge=name, **fields))  # type: ignore[arg-type]

    @rule(
        name=EDGES,
        number=st.integers(0, 4),
        run=st.sampled_from(RUNS),
        task=st.sampled_from(TASKS),
    )
    def call(self, name: str, number: int, run: str, task: object) -> None:
        self.edge.task = task  # type: ignore[assignment]  # one of TASKS
        self.called.add((name, run, number))
        self.take(self.edge.call(number, MODELS[(number + 1) % 3], run=run, edge=name))

    @precondition(lambda self: self.opening)
    @rule(fits=st.sampled_from([True, True, False]))
    def opened(self, fits: bool) -> None:
        job = self.opening.pop()
        self.take(self.edge.opened(job) if fits else self.edge.failed(job, "died"))

    @rule(
        name=EDGES,
        model=st.sampled_from(MODELS),
        indices=st.lists(st.integers(0, 3), max_size=4),
        spoilt=st.sampled_from([0, 0, 0, 1]),
    )
    def chunks(self, name: str, model: bytes, indices: list[int], spoilt: int) -> None:
        for index in indices:
            data = model[index * PIECE : (index + 1) * PIECE - spoilt]
            self.say(
                m.Chunk(run=RUN, round=1, digest=digest_of(model), index=index, data=data), name
            )

    @precondition(lambda self: self.training)
    @rule(data=st.data(), fails=st.booleans())
    def trained(self, data: st.DataObject, fails: bool) -> None:
        start, _ = self.training.pop(data.draw(st.sampled_from(sorted(self.training))))
        self.take(self.edge.failed(start, "died") if fails else self.edge.train(start, UPDATE))

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

    @precondition(lambda self: self.edge.said(m.UpdateOffer))
    @rule(data=st.data(), name=EDGES, first=st.integers(0, 3), count=st.integers(1, 2))
    def need(self, data: st.DataObject, name: str, first: int, count: int) -> None:
        offer = data.draw(st.sampled_from(self.edge.said(m.UpdateOffer)))
        for index in range(first, first + count):
            self.credit[offer.digest, index] += 1
        ranges = ((first, first + count),)
        need = m.Need(run=offer.run, round=offer.round, digest=offer.digest, ranges=ranges)
        self.say(need, name)

    @precondition(lambda self: self.edge.said(m.UpdateOffer))
    @rule(data=st.data())
    def receipt(self, data: st.DataObject) -> None:
        offer = data.draw(st.sampled_from(self.edge.said(m.UpdateOffer)))
        self.take(self.edge.receipt(offer))
        if self.edge.core.sessions.get(EDGE) is not None:
            self.receipted.add((EDGE, offer.run, offer.round))

    @rule(name=EDGES, number=st.integers(1, 4), run=st.sampled_from(RUNS), kept=st.booleans())
    def closed(self, name: str, number: int, run: str, kept: bool) -> None:
        self.say(m.RoundClosed(run=run, round=number, kept=kept), name)

    @rule()
    def kill(self) -> None:
        answered: set[Order] = set(self.edge.store.books.survived().answered)
        self.edge.restart()
        self.opening, self.evaluating, self.training = [], {}, {}
        # What was not answered with an update may be trained again, or be answered otherwise.
        self.trainings = Counter(
            {order: n for order, n in self.trainings.items() if order in answered}
        )
        self.answers = defaultdict(set, {one: {"update"} for one in answered & self.answers.keys()})
        self.ordered &= answered
        if self.revoked:
            self.take(self.edge.take(Revoked(1, frozenset({OTHER}))))
        self.join()

    @precondition(lambda self: not self.revoked)
    @rule(sure=st.integers(0, 9))
    def revoke(self, sure: int) -> None:
        if sure:
            return
        self.revoked = True
        self.take(self.edge.take(Revoked(1, frozenset({OTHER}))))

    # -------------------------------------------------------------- invariants

    @invariant()
    def no_order_is_trained_twice_and_no_round_for_two_edges(self) -> None:
        assert all(count == 1 for count in self.trainings.values())
        ranks = Counter((run, number) for _, run, number in self.trainings)
        assert all(count == 1 for count in ranks.values())

    @invariant()
    def every_order_is_answered_in_one_way_or_worked_on_or_over(self) -> None:
        assert all(len(classes) == 1 for classes in self.answers.values())
        work = self.edge.core.orders.active
        working = work.key if work is not None else None
        events = [*self.edge.events("abandoned"), *self.edge.events("update")]
        over = {(str(event["edge"]), int(str(event["round"]))) for event in events}
        for order in self.ordered:
            known = order in self.answers or order == working or (order[0], order[2]) in over
            assert known or (self.revoked and order[0] == OTHER)

    @invariant()
    def a_round_has_one_opinion_for_ever_and_the_owners_budget_holds(self) -> None:
        assert all(len(said) == 1 for said in self.told.values())
        for run in RUNS:
            told = sum(1 for of, _ in self.told if of == run)
            assert told <= self.edge.core.evaluator.spent.get(run, 0.0) <= TOTAL

    @invariant()
    def one_model_comes_in_at_a_time(self) -> None:
        core = self.edge.core
        works = (core.orders.active, core.evaluator.pending)
        assert not all(work is not None and work.fetch.loading for work in works)

    @invariant()
    def a_tick_leaves_nothing_due(self) -> None:
        """Otherwise the daemon's timer would spin."""
        now = self.edge.now
        self.take(self.edge.tick())
        due = self.edge.driver.next_due()
        assert due is None or due > now


UnderFire.TestCase.settings = settings(max_examples=30, stateful_step_count=60, deadline=None)
TestUnderFire = UnderFire.TestCase
