"""Learners that step down a mean gradient: `minibatch`, `bgd` and `sgd`."""

from collections.abc import Iterable
from functools import partial
from typing import TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from fedagent_protocol.messages import TrainCourse
from fedagent_task.models import Inputs, Labels, Model
from fedagent_task.models.base import Csr, batches, joined
from fedagent_task.recipe.client_terms import NO_TERMS, ClientTerms
from fedagent_task.recipe.spec import LearnerSpec
from fedagent_task.travelling import CONTROL

from .base import Learner, StepResult, Tensors, enough
from .course import ControlVariates, Course
from .steps import NOTHING, Steps, create_steps

Places = npt.NDArray[np.intp] | npt.NDArray[np.int64]


class Ring:
    """The memory of the newest samples, dense or sparse: at most `size`, each of `width` features.

    No reservoir: streams drift, and what a device sees now is what its model is for.
    """

    def __init__(self, size: int, width: int) -> None:
        self._size = size
        # Not filled with anything: pages are taken as samples come.
        self._x: Inputs = np.empty((size, width), np.float32)
        self._y = np.empty(size, np.float64)
        self._filled = self._next = 0
        self.dropped = 0

    def __len__(self) -> int:
        return self._filled

    def absorb(self, x: Inputs, y: Labels) -> None:
        """Take new samples; what is more than fits is dropped and counted."""
        self.dropped += max(0, len(y) - self._size)
        x, y = x[-self._size :], y[-self._size :]
        if isinstance(x, Csr) or isinstance(self._x, Csr):
            self._absorb_sparse(x if isinstance(x, Csr) else Csr.from_dense(x), y)
            return
        places = (self._next + np.arange(len(y))) % self._size
        self._x[places], self._y[places] = x, y
        self._next = (self._next + len(y)) % self._size
        self._filled = min(self._size, self._filled + len(y))

    def _absorb_sparse(self, x: Csr, y: Labels) -> None:
        kept = self._x if isinstance(self._x, Csr) else Csr.empty(x.width)
        stays = slice(max(0, len(kept) + len(y) - self._size), len(kept))
        labels = np.concatenate([self._y[stays], y])
        self._x, self._filled = joined([kept[stays], x]), len(labels)
        self._y[: self._filled] = labels
        self._next = self._filled % self._size

    def newest(self, count: int, part: slice) -> tuple[Inputs, Labels]:
        """Return a part of the newest, oldest first: a view, unless it goes over the end."""
        first = (self._next - count + part.start) % self._size
        stop = first + part.stop - part.start
        if stop <= self._size:
            return self.rows(slice(first, stop))
        return self.rows(np.arange(first, stop) % self._size)

    def rows(self, index: Places | slice) -> tuple[Inputs, Labels]:
        """Return some of the samples by their places, below `len`."""
        return self._x[index], self._y[index]


class Shared(TypedDict, total=False):
    """What `create_steps` takes beside the task.

    once: Tensors of a graph that the device got once: what is frozen, first local values.
    threads: Most that torch may use; 0 for all cores but one.
    """

    once: Tensors
    threads: int


class Remembering(Learner):
    """A learner that goes over the newest samples again and again."""

    def __init__(self, model: Model, spec: LearnerSpec, rng: np.random.Generator) -> None:
        self._model, self._spec, self._rng = model, spec, rng
        self._memory = Ring(spec.buffer, model.spec.features)

    @property
    def default_iterations(self) -> int:
        """The recipe's number of passes."""
        return self._spec.passes

    @property
    def num_samples(self) -> int:
        """Samples in memory."""
        return len(self._memory)

    @property
    def dropped(self) -> int:
        """New samples that came in one gush larger than the memory."""
        return self._memory.dropped

    def absorb(self, x: Inputs, y: Labels) -> None:
        """Put new samples in the place of the oldest."""
        self._memory.absorb(x, y)


class Minibatch(Remembering):
    """One iteration is one pass over the newest samples in batches, shuffled anew."""

    def __init__(
        self,
        model: Model,
        spec: LearnerSpec,
        rng: np.random.Generator,
        terms: ClientTerms = NO_TERMS,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(model, spec, rng)
        # Drawn apart: what a learner without randomness of torch's draws stays the same.
        seed = int(rng.spawn(1)[0].integers(2**62))
        self._steps: Steps = create_steps(model, spec, terms, seed=seed, **shared)
        self._base: Tensors = {}
        self._rate = spec.rate
        self._course = Course(spec, terms)
        self._control = ControlVariates() if terms.control else None

    def begin(self, base: Tensors, number: int = 1) -> None:
        """Start from a new global model, in the round of this number."""
        self._rate = self._spec.rate_at(number)
        self._course.begin(self._rate)
        correction = self._control.begin(base) if self._control is not None else NOTHING
        self._base = {name: t for name, t in base.items() if not name.startswith(CONTROL)}
        self._steps.begin(self._base, rate=self._rate, correction=correction)

    def update(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the float32 difference to the model that `begin` gave."""
        update = self._steps.moved(self._base)
        if self._control is None:
            return update
        return update | self._control.change(update, self._course.steps, self._rate)

    def step(self, iterations: int) -> StepResult:
        """Do this many passes."""
        count = len(self._memory)
        if not enough(self._model, count):
            return StepResult(0, 0, 0.0)
        parts, total = batches(count, self._spec.batch), 0.0
        self._look(map(self._memory.rows, parts))
        for _ in range(iterations):
            order = self._rng.permutation(count)
            for part in parts:
                batch = order[part]
                total += self._descend(*self._memory.rows(batch)) * len(batch)
        seen = iterations * count
        return StepResult(iterations, seen, total / max(seen, 1))

    @property
    def course(self) -> TrainCourse:
        """Figures of the training since `begin`."""
        return self._course.told()

    @property
    def local(self) -> Tensors:
        """Tensors that stay on the device."""
        return self._steps.local()

    def keep(self) -> Tensors:
        """Settle the last `update`; return what the device is to keep over rounds and restarts."""
        own = self._control.keep() if self._control is not None else NOTHING
        return {**self.local, **own}

    def restore(self, kept: Tensors) -> None:
        """Take what `keep` gave; without it begin anew."""
        if self._control is not None:
            self._control.restore(kept)
        self._steps.restore({n: t for n, t in kept.items() if not n.startswith(CONTROL)})

    def _descend(self, x: Inputs, y: Labels) -> float:
        loss = self._steps.step(x, y)
        self._course.add(loss, len(y))
        return loss

    def _look(self, batches: Iterable[tuple[Inputs, Labels]]) -> None:
        """Take the base model's mean loss of what is about to be learnt, where it is asked for."""
        if not self._course.wants_base_loss:
            return
        total, seen = 0.0, 0
        for x, y in batches:
            total += self._steps.loss(x, y) * len(y)
            seen += len(y)
        if seen:
            self._course.base_loss = total / seen


class Bgd(Minibatch):
    """One iteration is one step on the mean gradient of the memory; nothing is random."""

    def step(self, iterations: int) -> StepResult:
        """Do this many steps."""
        count = len(self._memory)
        if not enough(self._model, count):
            return StepResult(0, 0, 0.0)
        x, y = self._memory.rows(slice(count))
        total = 0.0
        self._look([(x, y)])
        for _ in range(iterations):
            total += self._descend(x, y)
        return StepResult(iterations, iterations * count, total / max(iterations, 1))


class Sgd(Minibatch):
    """One iteration is one step on the next `batch` waiting samples, oldest first.

    Each new sample is used once. What a round leaves waits for the next one, at most `buffer`
    samples; beyond that the oldest are dropped and counted. Nothing is random.
    """

    _waiting = _used = _lost = 0

    @property
    def default_iterations(self) -> int:
        """As many as the waiting samples need."""
        return len(batches(self._waiting, self._spec.batch))

    @property
    def num_samples(self) -> int:
        """Samples used since `begin`."""
        return self._used

    @property
    def dropped(self) -> int:
        """Samples that were replaced while they waited."""
        return self._lost

    def begin(self, base: Tensors, number: int = 1) -> None:
        """Start from a new global model; waiting samples stay."""
        super().begin(base, number)
        self._used = 0

    def absorb(self, x: Inputs, y: Labels) -> None:
        """Let new samples wait for their step."""
        super().absorb(x, y)
        there = self._waiting + len(y)
        self._waiting = min(there, self._spec.buffer)
        self._lost += there - self._waiting

    def step(self, iterations: int) -> StepResult:
        """Do this many steps, or as many as there are samples for."""
        if not enough(self._model, self._waiting):
            return StepResult(0, 0, 0.0)
        newest, seen, total = partial(self._memory.newest, self._waiting), 0, 0.0
        parts = batches(self._waiting, self._spec.batch)
        self._look(map(newest, parts))
        for part in parts[:iterations]:
            x, y = newest(part)
            total += self._descend(x, y) * len(y)
            seen = part.stop
        self._waiting -= seen
        self._used += seen
        return StepResult(min(iterations, len(parts)), seen, total / max(seen, 1))
