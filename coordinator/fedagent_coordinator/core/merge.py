"""The merging phase: edge models come here and are averaged to the global one."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from msgspec import structs

from fedagent_node.effects import FinishModel, ModelFinished, Send, Warn, WriteModel
from fedagent_protocol.messages import Chunk, Need, Weighting
from fedagent_protocol.transfer import Layout, Receiver
from fedagent_task.aggregation import EdgeShare, MergeFacts
from fedagent_task.aggregation.robust import Robust

from .edges import EdgeSession
from .effects import Merge, Merged, MergePart
from .run import Phase, Run
from .settings import milliseconds


@dataclass(slots=True)
class Pull:
    """One edge model on its way here; it is checked once the receiver is complete."""

    edge: str
    digest: str
    receiver: Receiver


class Merging(Phase):
    """Edge models are fetched, then averaged; `then` goes on when that is over."""

    def __init__(
        self,
        run: Run,
        round_: int,
        now: float,
        then: Callable[[float], Phase],
        timing_ms: dict[str, float] | None = None,
        firsts: Mapping[str, bytes] | None = None,
    ) -> None:
        super().__init__(run)
        self._round, self._then, self._firsts = round_, then, firsts or {}
        self._timing_ms = {} if timing_ms is None else timing_ms
        self._began_at, self._give_up_at = now, now + run.settings.recipe.rounds.merge_timeout_s
        self._shares: list[tuple[EdgeSession, EdgeShare]] = []
        self._pulls: dict[str, Pull] = {}
        self._asked = False
        self._merged: tuple[str, str] | None = None
        for edge in run.edges.live():
            share = self._share(edge)
            if run.settings.strategy.combine([share]).weights[0] > 0:
                self._shares.append((edge, share))
                self._fetch(edge, now)

    def _fetch(self, edge: EdgeSession, now: float) -> None:
        """Ask for the model of an edge, as far as its report has not brought it."""
        models, digest = self.run.models, edge.expected
        if digest in {models.digest, *self._pulls}:
            return
        layout = Layout(models.size, edge.chunk_bytes)
        pull = self._pulls[digest] = Pull(edge.id, digest, Receiver(layout, edge.pace))
        first = self._firsts.get(edge.id, b"")
        if first and len(first) == layout.first_bytes(len(first)):
            self._take(pull, 0, first, now)
        else:
            self._need(pull, now)

    def step(self, now: float) -> Phase:
        """Ask again for models that do not come; without them at the end, merge what came."""
        if now >= self.due:
            coming = [pull for pull in self._pulls.values() if not pull.receiver.complete]
            if now >= self._give_up_at:
                lost, coming = {pull.digest for pull in coming}, []
                self._lose(lost)
            self.due = self._give_up_at if coming else math.inf
            for pull in coming:
                self._need(pull, now)
        models = self.run.models
        if not (self._asked or self._pulls):
            self._asked = True
            if {edge.expected for edge, _ in self._shares} <= {models.digest}:
                return self._over(models.digest, models.state, now)
            self.run.do(self._merge())
        return self if self._merged is None else self._over(*self._merged, now)

    def receive_chunk(self, edge: str, chunk: Chunk, now: float) -> None:
        """Take in a chunk; one that nobody waits for changes nothing."""
        pull = self._pulls.get(chunk.digest)
        if pull is not None and pull.edge == edge and not pull.receiver.complete:
            self._take(pull, chunk.index, chunk.data, now)

    def model_finished(self, found: ModelFinished, now: float) -> None:  # noqa: ARG002
        """Note whether a pulled model hashes to its name; else its edge is left out."""
        pull = self._pulls.pop(found.digest, None)
        if pull is not None and found.refused:
            self._lose({found.digest})

    def merged(self, found: Merged, now: float) -> None:  # noqa: ARG002
        """Make the merged model the global one, and warn of the edge models left out."""
        for edge, reason in found.refused.items():
            name = self.run.members.called(edge, "")
            self.run.do(Warn("", f"the model of edge {name} is left out of the merge: {reason}"))
        if found.round == self._round:
            self.run.models.farthest = found.farthest
            self._merged = found.digest, found.state

    takes = {ModelFinished: model_finished, Merged: merged}  # noqa: RUF012 - of the class

    def _over(self, digest: str, state: str, now: float) -> Phase:
        run, models = self.run, self.run.models
        self._timing_ms["merge"] = milliseconds(now - self._began_at)
        if digest in {"", models.digest} and state in {"", models.state}:
            models.adopt(models.digest, self._round, now)
            return self._then(now)
        run.commit_model(self._round, digest, state, now)
        return self._then(now)

    def _merge(self) -> Merge:
        models, settings = self.run.models, self.run.settings
        shares = [share for _, share in self._shares]
        combined = settings.strategy.combine(shares)
        weights = zip(combined.weights, combined.buffers or combined.weights, strict=True)
        parts = [
            MergePart(edge.expected, weight, buffer, edge.id)
            for (edge, _), (weight, buffer) in zip(self._shares, weights, strict=True)
        ]
        merge = Merge(
            self._round,
            tuple(sorted(parts)),
            models.size,
            max((edge.window.norm for edge, _ in self._shares), default=0.0),
            facts=MergeFacts(rules=settings.rules),
        )
        if not settings.strategy.acts and type(settings.robust) is Robust:
            return merge
        facts = MergeFacts(
            weight=sum(share.weight for share in shares),
            clients=self.run.indices.sizes()[0],
            factor=combined.factor,
            rules=settings.rules,
        )
        return structs.replace(merge, base=models.digest, state=models.state, facts=facts)

    def _share(self, edge: EdgeSession) -> EdgeShare:
        """Return what an edge's model has to count by (docs/coordinator.md)."""
        recipe = self.run.settings.recipe
        return EdgeShare(
            weight=edge.window.weight,
            local_steps=edge.window.local_steps,
            uniform=recipe.rounds.weighting is Weighting.UNIFORM and not recipe.placement.rents,
            holds=bool(edge.model),
        )

    def _take(self, pull: Pull, index: int, data: bytes, now: float) -> None:
        if not pull.receiver.accept(index, len(data), now):
            return
        layout = pull.receiver.layout
        self.run.do(WriteModel(pull.digest, index * layout.chunk_bytes, data))
        if pull.receiver.complete:
            self.run.do(FinishModel(pull.digest, layout.size))
        else:
            self._need(pull, now)

    def _need(self, pull: Pull, now: float) -> None:
        if ranges := pull.receiver.ask(now):
            run = self.run.settings.run
            need = Need(run=run, round=self._round, digest=pull.digest, ranges=ranges)
            self.run.do(Send(pull.edge, need))
        self.due = min(self.due, pull.receiver.due or self._give_up_at)

    def _lose(self, digests: Collection[str]) -> None:
        """Leave out the edges of models that did not come, or are not what they are called."""
        for digest in digests:
            self._pulls.pop(digest, None)
        self._shares = [one for one in self._shares if one[0].expected not in digests]
