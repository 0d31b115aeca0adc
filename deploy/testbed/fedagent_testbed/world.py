"""A whole federation in virtual time: real runtimes, real disks, real bytes, a real ledger.

Only clocks, brokers and training are simulated. Every node can be killed at a time or at a
named crash point, any place between two disk effects, and comes back on its directory.
"""

import functools
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from fedagent_agent.trainer.scoring import protect
from fedagent_coordinator.books.read import open_reader
from fedagent_node.data_dir import Identity
from fedagent_task.recipe.spec import Recipe

from .kernel import Faults, Kernel, Network, lan
from .node import Node
from .roles import AgentNode, CoordinatorNode, EdgeNode

CALM = Faults()
_TASTE = 0.3
"""How far two models can be apart for one agent; the rest is the agent's own."""

Control = tuple[int, str, int, tuple[tuple[str, float], ...]]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended.

    Attributes:
        rents: (round, edge, micro-credits) of every rent that was settled.
        controls: Of each round that is done: iterations ordered, edge rented, rent paid, and
            what iteration control went by.
        evaluated: (round, answers) of every call for opinions, or for volunteers.
    """

    reason: str  # empty if it did not end in time
    rounds_done: int
    balanced: bool  # whether the ledger adds up, with its hash chain and high-water mark
    problems: tuple[str, ...]
    settled_reports: tuple[tuple[int, str], ...]  # number and state of every round
    paid: tuple[tuple[int, str], ...]  # (round, agent) of every outcome that was settled
    spent_micro: int
    rents: tuple[tuple[int, str, int], ...] = ()
    controls: tuple[Control, ...] = ()
    evaluated: tuple[tuple[int, int], ...] = ()


def seeded_identity(seed: int, name: str) -> Identity:
    """Return an identity that follows from a seed, for which it must guard nothing.

    Its keys are real, so that cards and envelopes are checked as they are live.
    """
    return Identity.of(hashlib.sha256(f"fedagent testbed/{seed}/{name}".encode()).digest())


def seeded_score(seed: int, agent: str, digest: str) -> float:
    """Return the score in [0, 1] that an agent gives a model: its own level, moved by the model."""
    own = _uniform(f"{seed}/{agent}")
    return (1 - _TASTE) * own + _TASTE * _uniform(f"{seed}/{agent}/{digest}")


def _uniform(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) / 2**48


class VirtualFederation:
    """One coordinator, some edges, and agents that see all of them, or some.

    Opinions follow from the seed, and are clipped, rounded and noised by the recipe; noise
    is OpenDP's own and follows from no seed.

    Args:
        directory: Data directories are made below it.
        recipe: Its learner must be ``none``.
        seed: Of delays, losses and their order.
        chunk_bytes: Small, so that small models travel in several chunks.
        train_s: How long a training takes on average.
        sees: The edges that an agent sees; all of them where it is not named.
        rents: What each edge asks for aggregating a round, in micro-credits; 0 by default.
        iteration_s: What the first agent reports for an iteration, the second twice that, and
            so on; 0 where agents report nothing of their training.
        arrivals: Samples that an agent reports for a round.

    Attributes:
        names: What agents are called here, by the ids that follow from their keys.
    """

    def __init__(
        self,
        directory: Path,
        recipe: Recipe,
        *,
        seed: int,
        edges: int = 1,
        agents: int = 3,
        faults: Faults = CALM,
        train_s: float = 0.2,
        chunk_bytes: int = 1024,
        sees: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
        rents: tuple[int, ...] = (),
        iteration_s: float = 0.0,
        arrivals: int = 0,
    ) -> None:
        self.kernel = Kernel()
        self.rng = np.random.default_rng(seed)
        self.network = network = Network(self.kernel, self.rng, faults)
        edge_ids = tuple(f"edge-{i}" for i in range(edges))
        identities = {f"agent-{i}": seeded_identity(seed, f"agent-{i}") for i in range(agents)}
        self.names = {identity.id: name for name, identity in identities.items()}
        self.coordinator = CoordinatorNode(
            network=network,
            id="coordinator",
            directory=directory / "coordinator",
            recipe=recipe,
            wait_edges=edges,
            wait_agents=agents,
        )
        self.edges = {
            name: EdgeNode(
                network=network,
                id=name,
                directory=directory / name,
                chunk_bytes=chunk_bytes,
                rent_micro=rents[i] if i < len(rents) else 0,
            )
            for i, name in enumerate(edge_ids)
        }
        self._opinions = recipe.opinions
        self.agents = {
            name: AgentNode(
                network=network,
                id=identity.id,
                directory=directory / name,
                name=name,
                identity=identity,
                edges=sees.get(name, edge_ids),
                slow_s=train_s * float(self.rng.uniform(0.5, 1.5)),
                iteration_s=iteration_s * (i + 1),
                arrivals=arrivals,
                think=functools.partial(self._opinion, seed, name),
            )
            for i, (name, identity) in enumerate(identities.items())
        }
        self.nodes: dict[str, Node] = {
            "coordinator": self.coordinator,
            **self.edges,
            **self.agents,
        }

    def _opinion(self, seed: int, name: str, digest: str) -> tuple[float, float]:
        return protect(seeded_score(seed, name, digest), self._opinions)

    def kill_after(self, name: str, seconds: float) -> None:
        """Let a node die at a time after the start."""
        self.kernel.after(seconds, self.nodes[name].kill)

    def cut(self, broker: str, *, at: float, seconds: float) -> None:
        """Kill a broker: what is under way is lost, and everybody must connect again."""
        self.kernel.after(at, lambda: self.network.down.add(broker))
        self.kernel.after(at + seconds, lambda: self._restore(broker))

    def part(self, agents: Iterable[str], *, at: float, seconds: float) -> None:
        """Put agents out of reach for some seconds; then they connect again."""
        for name in agents:
            self.kernel.after(at, functools.partial(self._away, name, away=True))
            self.kernel.after(at + seconds, functools.partial(self._away, name, away=False))

    def run(self, *, seconds: float = 300.0) -> Ending:
        """Run until the run is over, or for some virtual seconds."""
        for node in self.nodes.values():
            node.boot()
        until = self.kernel.now + seconds
        self.kernel.run(until=until, stop=lambda: bool(self.coordinator.done))
        ending = self._ending()
        for node in self.nodes.values():
            node.drop()
        return ending

    def _ending(self) -> Ending:
        with open_reader(self.coordinator.directory) as read:
            report = read.ledger.verify()
            run = read.run()
            rows = read.rounds(run.run_id)
            outcomes = read.outcomes(run.run_id)
            evaluated = read.evaluations.rows(run.run_id)
            entries = read.ledger.show(run_id=run.run_id, limit=-1)
        return Ending(
            reason=self.coordinator.done,
            rounds_done=sum(row.state == "done" for row in rows),
            balanced=report.balanced,
            problems=tuple(str(problem) for problem in report.problems),
            settled_reports=tuple((row.round, row.state) for row in rows),
            paid=tuple((row.round, self.names[row.agent]) for row in outcomes if row.paid_micro),
            spent_micro=report.settled_micro,
            rents=tuple(
                (entry.round or 0, entry.payee, entry.amount_micro)
                for entry in reversed(entries)
                if entry.target.startswith("rent/")
            ),
            controls=tuple(
                (row.iterations, row.rented, row.rent_micro, tuple(sorted(row.notes.items())))
                for row in rows
                if row.state == "done"
            ),
            evaluated=tuple((one.round, one.answered) for one in evaluated),
        )

    def _away(self, name: str, *, away: bool) -> None:
        agent = self.agents[name]
        agent.away = away
        if not away:
            for edge in agent.edges:
                agent.run(functools.partial(agent.reconnect, lan(edge)))

    def _restore(self, broker: str) -> None:
        self.network.down.discard(broker)
        for agent in self.agents.values():
            if broker in agent.incoming:
                agent.run(functools.partial(agent.reconnect, broker))
