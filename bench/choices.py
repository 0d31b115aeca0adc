"""Hashes of all choices of every policy, in three seeded towns: the guard of a rewrite.

python -m bench choices                # compare with bench/choices.txt
python -m bench.choices --policy adaptive
python -m bench.choices --write        # after a change that is meant to change choices

A town has features that decide who is in time, a client that dies, prices and budgets that bind,
and clients that come later; a policy learns for 40 rounds on each of two seeds. Nothing but views,
feedback and names of policies is used, so that the file runs at older commits too.
"""

import argparse
import hashlib
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fedagent_coordinator import policies
from fedagent_coordinator.policies import Feedback, RoundView, Selection, Truth, round_rng

from .rows import Row, Rows, show

KEPT = Path(__file__).with_name("choices.txt")
ROUNDS, SEEDS = 40, (0, 1)
TOWNS = {"links": (14, 3, True), "bare": (9, 1, False), "city": (60, 4, True)}
"""Clients, edges, and whether links are reported."""
FEATURES = ("compute", "download_bps", "upload_bps", "distance_km", "x_km", "y_km", "claim_gap")
PARAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "slots": ("quick-init-ucb", {"clients_per_round": 3, "slot_rounds": 2, "mu": 0.1}),
    "bp-ucb slots": ("bp-ucb", {"clients_per_round": 3, "slot_rounds": 2, "mu": 0.2}),
    "fair fastest": ("fair", {"policy": "fastest", "beta": 0.01, "freeze_after": 4}),
    "rbcs-f frozen": ("rbcs-f", {"V": 1.0, "clients_per_round": 3, "beta": 0.01}),
    "cocs edge": ("cocs", {"scope": "edge", "k_scale": 0.05, "h": 3}),
    "cocs flgreedy": ("cocs", {"solver": "flgreedy"}),
}
"""Policies that are asked with parameters."""
PAPER = {"scope": "pair", "k_scale": 1.0, "logs": False, "floor": False}


def _create(name: str, params: dict[str, Any]) -> Any:
    try:
        from fedagent_testbed.oracles import create
    except ImportError:  # an older commit
        return policies.create(name, **params)
    return create(name, params)


def _town(seed: int, t: int, clients: int, edges: int, links: bool) -> RoundView:
    fixed, rng = np.random.default_rng((1, seed)), np.random.default_rng((2, seed, t))
    there = clients * 3 // 4 + min(t // 8, clients // 4)  # some come later
    places, speed = fixed.random((clients, 2)), fixed.uniform(0.5, 4.0, clients)
    price = fixed.integers(100_000, 2_000_000, clients)[:there]
    visible = np.flatnonzero(rng.random(there * edges) < 0.8)
    client, edge = (visible // edges).astype(np.int32), (visible % edges).astype(np.int32)
    far = 0.05 + np.hypot(*(places[client] - np.linspace(0.2, 0.8, edges)[edge][:, None]).T)
    rate = 1e6 / far**2 * rng.lognormal(0.0, 0.3, len(visible))
    columns = (
        *(speed[client] * rng.uniform(0.8, 1.2, len(visible)), rate, rate / 4.0, far),
        *(places[client, 0], places[client, 1], rng.uniform(0.5, 2.0, len(visible))),
    )
    tau_s = 2.5e5 / columns[2] + 2.0 / columns[0]
    chance = np.clip(1.5 - tau_s / 3.0, 0.02, 0.98)
    chance = np.where((client == 2) & (t > ROUNDS // 2), 0.0, chance)
    arrives = rng.random(len(visible)) < chance
    shown = np.column_stack(columns).astype(np.float32)
    if links:
        shown[rng.random(len(visible)) < 0.05, 3] = np.nan  # what no policy has to have
    return RoundView(
        round=t,
        pair_client=client,
        pair_edge=edge,
        pair_features=shown,
        feature_names=FEATURES,
        client_price=price,
        client_available=rng.random(there) < 0.9,
        edge_budget=np.full(edges, 400_000 * there // edges, dtype=np.int64),
        deadline_s=3.0 if links else math.inf,
        model_bytes=22_500,
        opinions=rng.random(there),
        volunteers=rng.random(there) < 0.6,
        client_starts=np.full(there, t // 15, dtype=np.int64) if links else None,
        truth=Truth(arrives=arrives, chance=chance, tau_s=tau_s),
    )


def _played(seed: int, view: RoundView, selection: Selection) -> Feedback:
    rng, pairs, truth = np.random.default_rng((3, seed, view.round)), selection.pairs, view.truth
    assert truth is not None
    x, n = truth.arrives[pairs], len(pairs)
    late = ~x & (rng.random(n) < 0.4)
    known = x | late
    tau_s = np.where(x, np.minimum(truth.tau_s[pairs], 2.9), 4.0)
    return Feedback(
        view=view,
        pairs=pairs,
        X=x,
        used=x,
        tau_s=tau_s,
        dt_s=np.where(known, 0.1 * tau_s, np.nan),
        lc_s=np.where(known, 0.5 * tau_s, np.nan),
        ut_s=np.where(known, 0.4 * tau_s, np.nan),
        censored=~known,
        unpaid=~known,
        arrivals=rng.integers(0, 50, n),
        num_samples=rng.integers(1, 50, n),
        seconds_per_iteration=np.where(known, 0.01 * tau_s, np.nan),
        opinions=rng.random(len(view.client_price)),
        train_s=np.where(known, 0.3 * tau_s, np.nan),
        loss=np.where(known, rng.uniform(0.5, 2.0, n), np.nan),
        loss_rms=np.where(known, rng.uniform(0.5, 2.0, n), np.nan),
    )


def digest(policy: Any, town: str) -> str:
    """Return 16 hexadecimal digits of all that a policy chose in a town, on every seed."""
    found = hashlib.sha256()
    fresh = policy.state()
    for seed in SEEDS:
        policy.restore(fresh)
        for t in range(1, ROUNDS + 1):
            view = _town(seed, t, *TOWNS[town])
            selection = policy.select(view, round_rng(seed, t, 0))
            found.update(np.append(selection.pairs, -1).astype("<i8").tobytes())
            policy.learn(_played(seed, view, selection))
    return found.hexdigest()[:16]


def cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return name and parameters of whatever chooses, by what the kept file calls it."""
    paper: dict[str, tuple[str, dict[str, Any]]] = {
        "cocs-paper": ("cocs", PAPER),
        "quick-init-ucb-paper": ("quick-init-ucb", {"mu": 1.0}),
    }
    known = (*policies.names(), "fedcs", "oracle", "oracle-p")
    return {**paper, **{name: (name, {}) for name in known}, **PARAMS}


def kept() -> dict[tuple[str, str], str]:
    lines = KEPT.read_text(encoding="utf-8").splitlines() if KEPT.exists() else []
    return {(case, town): seen for case, town, seen in (line.rsplit(" ", 2) for line in lines)}


def rows(only: str = "") -> Rows:
    """Yield a row for each policy: the towns in which it chose otherwise than is kept."""
    known, made = kept(), cases()
    for case in sorted({only} if only else {*made, *(case for case, _ in known)}):
        if case not in made:
            yield {"bench": "choices", "policy": case, "met": False, "why": "there is no such"}
            continue
        name, params = made[case]
        other = [
            town for town in TOWNS if digest(_create(name, params), town) != known.get((case, town))
        ]
        row: Row = {"bench": "choices", "policy": case, "other": other, "met": not other}
        yield row


def write() -> None:
    lines = [
        f"{case} {town} {digest(_create(name, params), town)}\n"
        for case, (name, params) in sorted(cases().items())
        for town in TOWNS
    ]
    KEPT.write_text("".join(lines), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", default="")
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    if chosen.write:
        write()
        return 0
    return 0 if show(rows(chosen.policy)) else 1


if __name__ == "__main__":
    sys.exit(main())
