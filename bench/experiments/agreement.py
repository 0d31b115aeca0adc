"""Do agents that nobody leads agree on the K best? Sets decided in virtual time, default bounds.

python -m bench.experiments.agreement --loss 0 --loss 0.05 --loss 0.2 --sets 1000 --runs FILE

Twenty agents in a square with four nearest neighbours, opinions of N(0.7, 0.1), K = 5; delays of
2 to 10 ms, and all starts within a second, in any order. A network decides four sets. The K best
are those of the batch form with exact beliefs (1e-12). Sets that FILE has are not played again.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np

from bench.rows import Row
from fedagent_agent.peers.core.node import SlotPhase
from fedagent_agent.peers.seal import sealed_bytes
from fedagent_coordinator.policies.base import FloatArray
from fedagent_coordinator.policies.sets.beliefs import Wiring, propagate, wire
from fedagent_protocol.peers import Envelope, encode_envelope
from tests.fakes.peer_network import Faults, PeerNetwork, distances, names, near_graph, nodes_of

AGENTS, BEST, NEAREST = 20, 5, 4
SLOTS = range(2, 6)
START_S = 1.0
IDS = names(AGENTS)


def played(seed: int, loss: float) -> Iterator[Row]:
    """Play four slots of one network; return what each decided."""
    rng = np.random.default_rng(seed)
    graph = near_graph(rng, AGENTS, NEAREST)
    network = PeerNetwork(nodes_of(distances(graph)), seed, Faults(loss=loss))
    wiring, sent = wire(graph, local=True), Counter[str]()

    def watch(sender: str, envelope: Envelope) -> None:
        sent[sender] += sealed_bytes(len(encode_envelope(envelope)))

    network.watch = watch
    for t in SLOTS:
        sent.clear()
        opinion = np.clip(rng.normal(0.7, 0.1, AGENTS), 0, 1)
        network.begin_in_turn(t, opinion, rng.uniform(0, START_S, AGENTS))
        begun, named = network.now, _decided(network)
        seconds, index = network.now - begun, _indices(network, wiring, opinion)
        order = np.argsort(-index, kind="stable")
        chosen = {node.me for node in network.living if node.chosen}
        network.run(5.0)
        yield {
            "loss": loss,
            "seed": seed,
            "slot": t,
            "wrong": chosen != {IDS[n] for n in order[:BEST]},
            "margin": float(index[order[BEST - 1]] - index[order[BEST]]),
            "volunteers": len(chosen),
            "wrong_n": sum(agents != AGENTS for agents, _, _ in named.values()),
            "off": max(abs(named[me][1] - index[n]) for n, me in enumerate(IDS)),
            "stage": max(node.gossip.stage for node in network.living),
            "by_limit": sum(late for _, _, late in named.values()),
            "seconds": seconds,
            "bytes": max(sent.values()),
            "bytes_mean": sum(sent.values()) / AGENTS,
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


def summary(runs: list[Row], loss: float) -> Row:
    """Return the row of one loss."""
    here = [run for run in runs if run["loss"] == loss]

    def column(name: str) -> list[float]:
        return [float(str(run[name])) for run in here]

    wrong = [run for run in here if run["wrong"]]
    return {
        "bench": "agreement",
        "loss": loss,
        "sets": len(here),
        "wrong": len(wrong),
        "wrong_margin_most": max((float(str(run["margin"])) for run in wrong), default=0.0),
        "wrong_n": int(sum(column("wrong_n"))),
        "other_than_k": sum(run["volunteers"] != BEST for run in here),
        "index_off_most": max(column("off"), default=0.0),
        "sets_staged": sum(run["stage"] != 0 for run in here),
        "sets_by_limit": sum(bool(run["by_limit"]) for run in here),
        "seconds": round(median(column("seconds")), 3),
        "seconds_95": round(float(np.quantile(column("seconds"), 0.95)), 3),
        "bytes": median(column("bytes")),
        "bytes_95": float(np.quantile(column("bytes"), 0.95)),
        "bytes_mean": round(float(np.mean(column("bytes_mean")))),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.experiments.agreement", description=__doc__)
    parser.add_argument("--loss", type=float, action="append")
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--runs", type=Path, required=True)
    options = parser.parse_args()
    losses = options.loss or [0.0, 0.05, 0.2]
    lines = options.runs.read_text().splitlines() if options.runs.exists() else []
    runs: list[Row] = [json.loads(line) for line in lines]
    done = {(run["loss"], run["seed"]) for run in runs}
    with options.runs.open("a") as file:
        for seed in range(-(-options.sets // len(SLOTS))):
            for loss in losses:
                if (loss, seed) not in done:
                    runs += (fresh := list(played(seed, loss)))
                    file.writelines(json.dumps(run) + "\n" for run in fresh)
                    file.flush()
    rows = [summary(runs, loss) for loss in losses]
    for row in rows:
        print(json.dumps(row))
    return int(any(row["wrong"] or row["wrong_n"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
