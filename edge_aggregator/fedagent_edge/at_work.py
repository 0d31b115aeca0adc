"""The jobs of one round at the edge's disk: look at updates, keep them, make one model of them."""

from functools import partial

import numpy as np

from fedagent_node.driver import Job
from fedagent_node.effects import ContentLost, Input, RunJob
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.failpoints import Checkpoint
from fedagent_protocol.signed import WorkClaim, is_claim
from fedagent_protocol.tensors import (
    Buffer,
    Manifest,
    decode_tensors,
    encode_tensors,
    locate,
    tensor_at,
)
from fedagent_protocol.transfer import Layout
from fedagent_task.aggregation import Arrays
from fedagent_task.aggregation.alignment import Signs
from fedagent_task.aggregation.combining import combine
from fedagent_task.privacy.mechanism import KeyStream, add_noise
from fedagent_task.secure_aggregation.ring import MaskedSum

from .core.admission import SMALL_BYTES, Verdict, check_content
from .core.effects import (
    Admit,
    Admitted,
    Commit,
    Committed,
    DiskFailed,
    Ended,
    File,
    Keep,
    Kept,
    OpenRound,
)
from .core.weighing import Weighing
from .models import LOST, Models
from .spool import Journal, Place, Spool


class RoundAtWork:
    """One round of a task that is weighed like this; one of `LOST` without its base.

    Its jobs are small where its base is: all of them, so that none overtakes another.
    """

    def __init__(
        self,
        opened: OpenRound,
        weighing: Weighing,
        *,
        models: Models,
        spool: Spool,
        journal: Journal,
        chunk_bytes: int,
        checkpoint: Checkpoint,
    ) -> None:
        data = models.get(opened.base)
        self._weighing, self._models, self._spool, self._journal = weighing, models, spool, journal
        self._chunk_bytes, self._checkpoint = chunk_bytes, checkpoint
        self._small = len(data) <= SMALL_BYTES
        self._base = self._updates = Manifest(tuple(item.spec for item in locate(data)))
        if weighing.ring is not None:
            latest = frozenset(weighing.rules.latest)
            self._updates = weighing.ring.manifest(self._base, latest)
        # Of the sketches of its updates, where directions are looked at.
        self._signs = Signs(opened.signs) if weighing.robust.directions else None
        self._held: dict[File, bytes | Place] = {}
        """The small updates that were admitted, or where the journal has them."""

    def job(self, effect: RunJob) -> Job:
        """Prepare a job."""
        work: partial[Input]
        match effect:
            case Commit():
                work = partial(self._commit, effect)
            case Keep():
                work = partial(self._keep, effect)
            case _:
                assert isinstance(effect, Admit)
                work = partial(self._admit, effect)
        return Job(type(effect).__name__.lower(), work, self._small)

    def look_again(self, one: Ended, place: Place) -> Verdict:
        """Look again at an update that is on the disk; it may be damaged."""
        if one.offer is None:
            return Verdict(str(one.status))
        if place[1]:
            self._held[one.file] = place
        try:
            return self._look_at(self._content(one.file), one.offer.digest)
        except (OSError, ValueError):
            return Verdict("lost")

    def _look_at(self, content: Buffer, digest: str, norm_limit: float = 0.0) -> Verdict:
        weighing = self._weighing
        return check_content(
            content,
            digest,
            self._updates,
            norm_limit,
            control_limit=weighing.control_limit,
            latest=weighing.rules.latest,
            signs=self._signs,
        )

    def _admit(self, admit: Admit) -> Input:
        offer, agent = admit.offer, admit.key[2]
        work = WorkClaim.offered(offer, admit.edge, agent)
        if admit.edge and not is_claim(offer.claim, agent, work.statement):
            verdict = Verdict("bad_claim", "not signed as the work of this round")
        else:
            try:
                content = admit.whole or self._spool.content((agent, offer.digest))
                verdict = self._look_at(content, offer.digest, admit.norm_limit)
            except OSError as error:
                return DiskFailed(str(error)[:120], agent)
        self._checkpoint("edge.complete")
        if admit.whole and verdict.valid:
            self._held[agent, offer.digest] = admit.whole
        return Admitted(admit.key, verdict)

    def _keep(self, keep: Keep) -> Input:
        """Have updates in the journal, or in files that it names, with one sync for all."""
        places: dict[File, Place] = {}
        try:
            self._spool.sync(*(one.file for one in keep.ended if one.file not in self._held))
            for ended in keep.ended:
                held = self._held.get(ended.file, b"")
                place = self._journal.append(ended, held if isinstance(held, bytes) else b"")
                if held:
                    places[ended.file] = place
            self._journal.sync()
        except OSError as error:
            return Kept((), str(error)[:120])
        self._held.update(places)
        self._checkpoint("edge.spooled")
        return Kept(tuple(one.key for one in keep.ended))

    def _content(self, file: File) -> Buffer:
        held = self._held.get(file)
        if isinstance(held, tuple):
            return self._journal.data(held)
        return self._spool.content(file) if held is None else held

    def _arrays(self, file: File) -> Arrays:
        body = self._content(file)
        return {item.spec.name: tensor_at(body, item) for item in locate(body)}

    def _commit(self, commit: Commit) -> Input:
        """Make base + mean a durable model, unless it is not finite."""
        weighing = self._weighing
        try:
            data = self._models.get(commit.base)
        except LOST as error:
            return ContentLost(commit.base, str(error))
        digest, fresh, weight = "", b"", 0.0
        try:
            if weighing.ring is not None:
                masked = MaskedSum(weighing.ring, weighing.rules)
                for file, _ in commit.terms:
                    masked.add(self._arrays(file))
                mean = masked.unmasked(commit.unmask, self._base)
                weight = mean.weight
            else:
                updates = [(partial(self._arrays, file), term) for file, term in commit.terms]
                mean = combine(weighing.robust, updates, weighing.rules)
            if weighing.deviation:
                mean.change(partial(add_noise, deviation=weighing.deviation, stream=KeyStream()))
            tensors = mean.apply(decode_tensors(data, self._base), commit.scale)
            if all(np.isfinite(array).all() for array in tensors.values()):
                fresh = encode_tensors(tensors)
                digest = self._models.put(fresh, small=self._small)
        except (OSError, ProtocolError) as error:
            return Committed(commit.run, commit.round, refused=str(error)[:120])
        except ZeroDivisionError:
            return Committed(commit.run, commit.round)
        self._checkpoint("edge.aggregated")
        first = fresh[: Layout(len(fresh), self._chunk_bytes).first_bytes()] if fresh else b""
        return Committed(commit.run, commit.round, digest, len(fresh), first, weight=weight)
