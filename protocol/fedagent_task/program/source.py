"""What the author of a model brings; to name it, torch is not needed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Loss = Callable[..., "torch.Tensor"]


@dataclass(frozen=True, slots=True)
class TaskSource:
    """A model as its author brings it.

    `example` is one batch: the inputs, then the target, or None for a loss that looks at the
    inputs only (an autoencoder): ``loss(output, target)`` or ``loss(output, *inputs)``. `local`
    are patterns of names that stay on the device; ``"norms"`` stands for all normalisation
    layers. `learner` are defaults for ``[learner]``.
    """

    model: "torch.nn.Module"
    loss: Loss
    example: "tuple[torch.Tensor | None, ...]"
    labels: Sequence[str] = ()
    local: Sequence[str] = ()
    learner: Mapping[str, object] = field(default_factory=dict)
