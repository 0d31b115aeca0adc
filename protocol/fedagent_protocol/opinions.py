"""Opinions of devices, and that they volunteer, signed by themselves.

Edges hand them on to the coordinator, which uses none that its device did not sign: an edge can
neither invent nor alter one, nor hand on that of another round, model or task. Pure.
"""

import struct
from collections.abc import Callable

from msgspec import Struct
from msgspec.msgpack import Encoder

from .messages import Digest, Id, Opinion, OpinionCall, RunId, Volunteer

_OPINION = b"fedagent/opinion/1\x00"
_VOLUNTEER = b"fedagent/volunteer/1\x00"
_encoder = Encoder()

SignAnswer = Callable[[OpinionCall, Opinion | Volunteer, str], bytes]
"""Gives the `claim` of an answer to a call, for an edge; an empty one in virtual time."""


class Asked(Struct, frozen=True, kw_only=True):
    """What a device was asked; `task` says what a score is of."""

    site: str
    run: RunId
    round: int
    task: Digest
    model: Digest

    def opinion(self, agent: Id, said: Opinion) -> bytes:
        """Return what the claim of an opinion is a signature of, as exact as columns are."""
        return self.scored(agent, said.metric, said.score, said.samples, said.epsilon)

    def scored(self, agent: Id, metric: str, score: float, samples: int, epsilon: float) -> bytes:
        """Return the same by what stands in columns."""
        said = (agent, metric, struct.pack("<ff", score, epsilon + 0.0), samples)
        return _OPINION + _encoder.encode((*self._facts, *said))

    def volunteer(self, agent: Id, edge: Id) -> bytes:
        """Return what the claim of a volunteer is a signature of, at one edge."""
        return _VOLUNTEER + _encoder.encode((*self._facts, agent, edge))

    @property
    def _facts(self) -> tuple[str, str, int, str, str]:
        return self.site, self.run, self.round, self.task, self.model
