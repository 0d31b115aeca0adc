"""Do agents that nobody leads agree on the K best? Sets decided in virtual time, default bounds.

Twenty agents in a square with four nearest neighbours, opinions of N(0.7, 0.1), K = 5; delays of
2 to 10 ms, and all starts within a second, in any order. A network, one a seed, decides four sets;
a case is a share of envelopes that is lost. The K best are those of the batch form with exact
beliefs (1e-12).
"""

from collections import Counter
from collections.abc import Iterator
from statistics import median

import numpy as np

from fedagent_agent.peers.core.node import SlotPhase
from fedagent_agent.peers.seal import sealed_bytes
from fedagent_coordinator.policies.base import FloatArray
from fedagent_coordinator.policies.sets.beliefs import Wiring, propagate, wire
from fedagent_protocol.peers import Envelope, encode_envelope
from tests.fakes.peer_network import Faults, PeerNetwork, distances, names, near_graph, nodes_of

from .measures import Figures
from .table import Line, line

AGENTS, BEST, NEAREST = 20, 5, 4
SLOTS = range(2, 6)
START_S = 1.0
LOSSES = (0.0, 0.05, 0.2)
IDS = names(AGENTS)


def lines(name: str, seeds: int, only: str) -> Iterator[Line]:
    """Yield a line for each share of lost envelopes."""
    for loss in LOSSES:
        if only in (case := f"loss {loss:g}"):
            yield line(name, case, [played(seed, loss) for seed in range(seeds)])


def played(seed: int, loss: float) -> Figures:
    """Let one network decide its sets."""
    rng = np.random.default_rng(seed)
    graph = near_graph(rng, AGENTS, NEAREST)
    network = PeerNetwork(nodes_of(distances(graph)), seed, Faults(loss=loss))
    wiring, sent = wire(graph, local=True), Counter[str]()

    def watch(sender: str, envelope: Envelope) -> None:
        sent[sender] += sealed_bytes(len(encode_envelope(envelope)))

    network.watch = watch
    wrong, wrong_n, other, staged = 0, 0, 0, 0
    seconds, size, margin = list[float](), list[int](), list[float]()
    for t in SLOTS:
        sent.clear()
        opinion = np.clip(rng.normal(0.7, 0.1, AGENTS), 0, 1)
        network.begin_in_turn(t, opinion, rng.uniform(0, START_S, AGENTS))
        begun, named = network.now, _decided(network)
        seconds.append(network.now - begun)
        index = _indices(network, wiring, opinion)
        order = np.argsort(-index, kind="stable")
        margin.append(float(index[order[BEST - 1]] - index[order[BEST]]))
        chosen = {node.me for node in network.living if node.chosen}
        network.run(5.0)
        wrong += chosen != {IDS[n] for n in order[:BEST]}
        wrong_n += sum(agents != AGENTS for agents, _, _ in named.values())
        other += len(chosen) != BEST
        staged += any(node.gossip.stage for node in network.living)
        size.append(max(sent.values()))
    return {
        "sets": float(len(SLOTS)),
        "wrong_sets": float(wrong),
        "wrong_n": float(wrong_n),
        "other_than_k": float(other),
        "staged": float(staged),
        "margin_least": min(margin),
        "seconds": median(seconds),
        "bytes_most": float(max(size)),
    }


def _decided(network: PeerNetwork) -> dict[str, tuple[int, float, bool]]:
    """Run until all have; return N, index and whether time was up, when it was last named."""
    named: dict[str, tuple[int, float, bool]] = {}
    stages: dict[str, int] = {}

    def over() -> bool:
        for node in network.living:
            stage, speaks = node.gossip.stage, node.phase in (SlotPhase.GOSSIP, SlotPhase.DECIDED)
            if speaks and stages.get(node.me) != stage:
                late = network.now >= node.beliefs.limit
                named[node.me] = node.gossip.agents, node.index or 0.0, late
                stages[node.me] = stage
        return all(node.phase is SlotPhase.DECIDED for node in network.living)

    assert network.run(30.0, over)
    return named


def _indices(network: PeerNetwork, wiring: Wiring, opinion: FloatArray) -> FloatArray:
    """Return every index with the exact belief and N."""
    belief = propagate(wiring, opinion, tolerance=1e-12, max_sweeps=2000).belief
    own = [node.beliefs.belief / node.gossip.agents for node in network.living]
    index = [node.index or 0.0 for node in network.living]
    return np.asarray(np.array(index) - np.array(own) + belief / AGENTS)
