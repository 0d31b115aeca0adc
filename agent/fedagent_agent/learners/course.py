"""What a training tells strategies and policies beyond its mean loss."""

import math

from fedagent_protocol.messages import TrainCourse
from fedagent_task.client_terms import ClientTerms
from fedagent_task.spec import LearnerSpec


def local_steps(spec: LearnerSpec, mu: float, rate: float, count: int) -> float:
    """Return |a| of `count` steps (Wang et al. 2020, FedNova, section 4).

    Plain SGD weighs each gradient by 1; with momentum m the one of step k moves the model
    by (1 - m^(count - k)) / (1 - m) in all, with a proximal term by (1 - rate·mu)^(count - k).
    """
    if spec.momentum:
        m = spec.momentum
        return (count - m * (1.0 - m**count) / (1.0 - m)) / (1.0 - m)
    shrink = rate * mu
    if shrink:
        return -math.expm1(count * math.log1p(-shrink)) / shrink
    return float(count)


class Course:
    """Adds up one training's figures."""

    def __init__(self, spec: LearnerSpec, terms: ClientTerms) -> None:
        self._spec, self._terms = spec, terms
        self.begin(spec.rate)

    def begin(self, rate: float) -> None:
        """Forget the round before."""
        self._rate = rate
        self._samples, self._squares, self.steps = 0, 0.0, 0
        self.base_loss: float | None = None

    def add(self, loss: float, samples: int) -> None:
        """Take one step: the mean loss before it."""
        self.steps += 1
        self._samples += samples
        self._squares += samples * loss * loss

    @property
    def wants_base_loss(self) -> bool:
        """Whether the loss of the base model is asked for and not known yet."""
        return self._terms.base_loss and self.base_loss is None

    def told(self) -> TrainCourse:
        """Return the figures; 0 for what is not finite."""
        asked, terms = 0.0, self._terms
        if terms.local_steps:
            asked = local_steps(self._spec, terms.mu, self._rate, self.steps)
        return TrainCourse(
            base_loss=_finite(self.base_loss or 0.0),
            loss_rms=_finite(math.sqrt(self._squares / max(1, self._samples))),
            local_steps=_finite(asked),
        )


def _finite(number: float) -> float:
    return number if math.isfinite(number) else 0.0
