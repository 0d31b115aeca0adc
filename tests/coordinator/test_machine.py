"""The coordinator as a state machine: books balance and rounds end, however it went.

What edges say is lost, repeated and out of order, edges start again, and the coordinator dies
wherever it writes.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedagent_coordinator.books.write import Books
from fedagent_coordinator.runs import RunFinishedError
from fedagent_node.effects import EVERYBODY, Send
from fedagent_protocol import messages as m
from fedagent_protocol import topics
from fedagent_protocol.codec import encode
from tests.fakes.coordinator_site import KilledError, Site, check_books, recipe, toy_edges
from tests.fakes.strategy_chain import check_chain
from tests.fakes.toy_edge import ToyEdge

ROUNDS = 3
KINDS: dict[str, tuple[str, ...]] = {
    "plain": ("rounds.merge_every=2",),
    "evaluated": ("policy.name=quick-init-ucb", "policy.params.clients_per_round=2"),
    "volunteers": ("policy.name=volunteers", "opinions.mode=peers", "peers.best=2"),
    "seldom": ("opinions.mode=report", "opinions.every=2"),
    "strategy": ("aggregation.name=fedyogi", "aggregation.params.eta=0.5"),
    "placed": ("placement.name=budgeted-ucb", "iterations.name=primal-dual"),
    "standardized": ("data.scale=1", "data.standardize=true"),
}
WHICH = st.integers(0, 40)


class Spoilt(Site):
    """A coordinator whose messages wait until somebody delivers them."""

    deaths: tuple[int, ...] = ()
    """How many crash points each of its processes comes by."""

    def begin(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self._alive(self._start)
        self._beat()

    def _start(self) -> None:
        try:
            super()._start()
        except RunFinishedError:  # it died after the end was written
            self.done = "rounds"

    def checkpoint(self, name: str) -> None:
        if self.deaths:
            left, *rest = self.deaths
            self.deaths = (left - 1, *rest) if left > 1 else tuple(rest)
            if left == 1:
                raise KilledError(name)

    def up(self, edge: ToyEdge, message: m.EdgeToCoordinator) -> None:
        topic = topics.edge_up("default", edge.id, m.kind(message))
        arrive = partial(self._arrive, topic, encode(message))
        self.waiting.append(lambda: self._alive(arrive))

    def send(self, send: Send) -> bool:
        payload = encode(send.message)
        for edge in self.edges:
            if send.to in (edge.id, EVERYBODY):
                self.waiting.append(partial(self._deliver, edge, payload))
        return True

    def deliver(self, place: int, *, keep: bool = False) -> None:
        deliver = self.waiting[place] if keep else self.waiting.pop(place)
        deliver()

    def flow(self, seconds: float) -> None:
        """Let everything come as it was sent, for a while."""
        until = self.kernel.now + seconds
        while self.kernel.now < until and not self.done:
            while self.waiting:
                self.deliver(0)
            self.kernel.run(until=self.kernel.now + 0.05)


class Coordinator(RuleBasedStateMachine):
    """One run of a few rounds; at its end everything comes through."""

    @initialize(
        kind=st.sampled_from(sorted(KINDS)),
        edges=st.integers(1, 3),
        deaths=st.lists(st.integers(5, 40), min_size=1, max_size=4),
        spoils=st.booleans(),
    )
    def begins(self, kind: str, edges: int, deaths: list[int], *, spoils: bool) -> None:
        self.folder, self.kind = tempfile.TemporaryDirectory(), kind
        given = recipe(f"rounds.count={ROUNDS}", "opinions.timeout_s=2", *KINDS[kind])
        made = toy_edges(given, edges, agents=2)
        for rent, edge in enumerate(made, start=1):
            edge.rent = 100_000 * rent
            for agent in edge.agents:
                agent.x = np.full((3, 64), rent, np.float32)
        if spoils:
            spoiler = made[0].agents[0]
            rejected = m.OutcomeStatus.REJECTED
            spoiler.outcome = m.Outcome(agent=spoiler.id, status=rejected, tau_ms=1)
        self.site = Spoilt(Path(self.folder.name), given, made)
        self.site.deaths = tuple(deaths)
        self.site.begin()

    @precondition(lambda self: self.site.waiting)
    @rule(which=WHICH)
    def comes(self, which: int) -> None:
        self.site.deliver(which % len(self.site.waiting))

    @precondition(lambda self: self.site.waiting)
    @rule(which=WHICH)
    def comes_twice(self, which: int) -> None:
        self.site.deliver(which % len(self.site.waiting), keep=True)

    @precondition(lambda self: self.site.waiting)
    @rule(which=WHICH)
    def is_lost(self, which: int) -> None:
        del self.site.waiting[which % len(self.site.waiting)]

    @rule(seconds=st.sampled_from([0.1, 1.0, 7.0, 20.0]))
    def time_goes_by(self, seconds: float) -> None:
        if not self.site.done:
            self.site.kernel.run(until=self.site.kernel.now + seconds)

    @rule(seconds=st.sampled_from([0.2, 0.6, 3.0]))
    def all_goes_well(self, seconds: float) -> None:
        self.site.flow(seconds)

    @rule(which=WHICH, forget=st.booleans())
    def an_edge_starts_again(self, which: int, *, forget: bool) -> None:
        edges = self.site.edges
        edges[which % len(edges)].restart(forget_model=forget)

    @invariant()
    def is_never_overspent(self) -> None:
        if self.site.driver is not None:
            total = self.site.recipe.budget.total_micro
            assert total is not None
            assert self.site.engine.run.spent_micro <= total

    @invariant()
    def has_one_round_open_at_most(self) -> None:
        if self.site.driver is not None:
            store = self.site.store
            rounds = store.database.read.rounds(store.run.run_id)
            assert all(row.state != "open" for row in rounds[:-1])

    def teardown(self) -> None:
        site = self.site
        with self.folder:
            try:
                site.flow(600.0)
                check_books(site, ROUNDS)
            finally:
                site.close()
            with Books(site.folder) as store:
                check(site, store)
            if self.kind != "placed":
                check_chain(site.folder, site.recipe)


def check(site: Site, store: Books) -> None:
    read, run = store.read, store.read.run().run_id
    orders = {number for edge in site.edges for number in edge.orders}
    assert {outcome.round for outcome in read.outcomes(run) if outcome.paid_micro} <= orders
    done = [row.round for row in read.rounds(run) if row.state == "done"]
    if site.recipe.opinions.mode == "report":
        evaluated = [row.round for row in read.evaluations.rows(run)]
        every = site.recipe.opinions.every
        assert evaluated == [0, *done[every - 1 :: every]]


TestCoordinator = Coordinator.TestCase
TestCoordinator.settings = settings(max_examples=15, stateful_step_count=40, deadline=None)
