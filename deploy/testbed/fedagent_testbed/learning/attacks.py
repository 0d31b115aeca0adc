"""Clients of a study that do harm: what they make of their updates, and of their labels.

They know each other's updates and those of the honest clients that train beside them, as in the
literature: ALIE is of Baruch et al. (NeurIPS 2019), the inner-product manipulation of Xie et al.
(UAI 2020). What is not finite an edge rejects at its door.
"""

from dataclasses import dataclass, fields, replace
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from fedagent_testbed.recipe import Attackers
from fedagent_testbed.worlds.base import spawned_rng

from .aggregating import Updates
from .local_sgd import Floats, Shards

_WHO, _NOISE = 6, 7
"""First words of spawn keys."""
_CLAIM = 1_000_000
"""What a weight-lie claims: the most samples that a recipe takes unless it says otherwise."""


@dataclass(frozen=True, slots=True, eq=False)
class Attack:
    """Who attacks how; bool[N]."""

    kind: str
    hostile: npt.NDArray[np.bool_]
    seed: int

    @classmethod
    def of(cls, attackers: Attackers, clients: int, seed: int) -> "Attack":
        """Draw who attacks: the same whatever they do."""
        hostile = np.zeros(clients, dtype=np.bool_)
        count = round(attackers.share * clients)
        hostile[spawned_rng(seed, _WHO).permutation(clients)[:count]] = True
        return cls(attackers.kind, hostile, seed)

    def flipped(self, shards: Shards, classes: int) -> Shards:
        """Return the samples with the attackers' labels turned round, if that is what they do."""
        if self.kind != "label-flip" or not self.hostile.any():
            return shards
        labels = shards.y.copy()
        for client in np.flatnonzero(self.hostile).tolist():
            part = shards.of(client)
            labels[part] = classes - 1 - labels[part]
        return Shards(shards.x, labels, shards.first, shards.counts)

    def changed(self, part: Updates, round_: int) -> Updates:
        """Return the updates as they arrive."""
        bad = self.hostile[part.clients]
        if not bad.any():
            return part
        if self.kind == "not-finite":
            return _kept(part, ~bad)
        deltas, samples = part.deltas.copy(), part.samples
        deltas[bad] = self._sent(part.deltas, bad, round_)
        if self.kind == "weight-lie":
            samples = np.where(bad, _CLAIM, samples)
        return replace(part, deltas=deltas, samples=samples)

    def _sent(self, deltas: Floats, bad: npt.NDArray[np.bool_], round_: int) -> Floats:
        own, honest = deltas[bad], deltas[~bad] if not bad.all() else deltas
        match self.kind:
            case "sign-flip" | "weight-lie":
                return -own
            case "times-100":
                return np.asarray(-100.0 * own, np.float32)
            case "alie":
                behind = honest.mean(axis=0) - _z(len(deltas), len(own)) * honest.std(axis=0)
                return np.broadcast_to(behind, own.shape).astype(np.float32)
            case "inner-product":
                return np.broadcast_to(-2.0 * honest.mean(axis=0), own.shape).astype(np.float32)
            case "free-rider":
                return np.zeros_like(own)
            case "noise":
                rng = spawned_rng(self.seed, _NOISE, round_)
                noise = rng.standard_normal(own.shape).astype(np.float32)
                usual = np.median(np.linalg.norm(honest, axis=1))
                scaled = noise * (usual / np.linalg.norm(noise, axis=1, keepdims=True))
                return np.asarray(scaled, np.float32)
            case "copy":
                return np.broadcast_to(honest[0], own.shape).copy()
            case _:
                return own


def _z(clients: int, bad: int) -> float:
    """Return ALIE's z: so far behind that enough honest clients are farther (algorithm 3)."""
    supporters = clients // 2 + 1 - bad
    share = (clients - bad - supporters) / max(clients - bad, 1)
    return NormalDist().inv_cdf(min(max(share, 0.01), 0.999))


def _kept(part: Updates, rows: npt.NDArray[np.bool_]) -> Updates:
    there = {one.name: getattr(part, one.name) for one in fields(part)}
    return replace(part, **{name: one[rows] for name, one in there.items() if one is not None})
