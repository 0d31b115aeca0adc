"""What follows from a seed about the agents of a virtual world: their keys and their opinions.

Keys are real ones, so that cards and envelopes are checked as they are live; opinions are of
models that were not trained.
"""

import hashlib
from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedagent_agent.trainer.privacy import ProtectedScore, protect
from fedagent_node.data_dir import Identity, identity_of
from fedagent_task.spec import OpinionsSpec

METRIC = "seeded"
SAMPLES = 100
"""Samples that a virtual opinion claims to rest on."""
_TASTE = 0.3
"""How far two models can be apart for one agent; the rest is the agent's own."""

Score = Callable[[str, str], float]
"""The score in [0, 1] that an agent, by name, gives a model, by digest."""


def seeded_identity(seed: int, name: str) -> Identity:
    """Return an identity that follows from a seed, for which it must guard nothing."""
    private = hashlib.sha256(f"fedagent testbed/{seed}/{name}".encode()).digest()
    public = Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    return Identity(identity_of(public), public, private)


def seeded_scores(seed: int) -> Score:
    """Return scores that follow from a seed: an agent's own level, moved by the model."""

    def score(agent: str, digest: str) -> float:
        own = _uniform(f"{seed}/{agent}")
        return (1 - _TASTE) * own + _TASTE * _uniform(f"{seed}/{agent}/{digest}")

    return score


def opinion_of(agent: str, score: Score, spec: OpinionsSpec) -> Callable[[str], ProtectedScore]:
    """Return an agent's opinion of a model as a device makes it: clipped, rounded, noised.

    Noise is OpenDP's own and follows from no seed; without ``epsilon`` there is none.
    """
    return lambda digest: protect(score(agent, digest), spec)


def _uniform(text: str) -> float:
    """Return a number in [0, 1) that follows from a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) / 2**48
