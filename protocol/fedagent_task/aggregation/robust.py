"""What takes the place of the mean of a round's updates, so that a few cannot move it far.

`clipped-mean` needs norms only; an update counts by its weight. `multi-krum` looks at
the inner products of all updates of a round, which count alike.
"""

import numpy as np
import numpy.typing as npt

from fedagent_protocol.registry import Registry, number, require
from fedagent_task.recipe.spec import AUTO, AggregationSpec

Floats = npt.NDArray[np.float64]


class Robust:
    """The plain mean, with no bounds: `none`.

    Attributes:
        clip: An update is shortened to this multiple of the median norm; 0 for never.
        cap: What a device claims counts as this multiple of the median claim at most.
        directions: Devices that keep pointing against the others are left out.
    """

    clip: float = 0.0
    cap: float = 0.0
    directions: bool = False


PLAIN = Robust()


class ClippedMean(Robust):
    """The mean of updates no longer, and no heavier, than a multiple of the median.

    Devices that keep pointing against the others are left out, unless not `directions`.
    """

    def __init__(self, *, clip: float = 1.5, cap: float = 2.0, directions: bool = True) -> None:
        self.directions = directions
        self.clip = number("clipped-mean", "clip", clip, least=1.0, most=1e6)
        self.cap = number("clipped-mean", "cap", cap, least=1.0, most=1e6)


class MultiKrum(Robust):
    """The mean of those closest to their neighbours (Blanchard et al., NeurIPS 2017).

    A `share` of n, f, is left out; a score is the sum of the n - f - 2 smallest squared distances.
    All that are kept weigh equally, whatever their samples (Flower's weigh by samples).
    """

    cap = 2.0

    def __init__(self, *, share: float = 0.2) -> None:
        require("multi-krum", "share", share, share < 0.5, "less than 0.5")
        self.share = number("multi-krum", "share", share, least=0.0, most=0.5)

    def combination(self, gram: Floats) -> Floats:
        """Return the factors of the mean of the n - f best, float64[n], by float64[n, n]."""
        n, own = len(gram), np.diag(gram)
        out = min(int(np.ceil(self.share * n)), n - 1)
        square = np.maximum(own[:, None] + own[None, :] - 2.0 * gram, 0.0)
        np.fill_diagonal(square, np.inf)
        near = np.sort(square, axis=1)[:, : max(1, n - out - 2)]
        kept = np.argsort(near.sum(axis=1) if n > 1 else np.zeros(1), kind="stable")[: n - out]
        factors = np.zeros(n)
        factors[kept] = 1.0 / len(kept)
        return factors


DEFAULT = "clipped-mean"

registry: Registry[Robust] = Registry(
    kind="robust rule",
    package="fedagent_task.aggregation",
    builtin={
        "clipped-mean": "robust:ClippedMean",
        "multi-krum": "robust:MultiKrum",
        "none": "robust:Robust",
    },
)


def rule_of(spec: AggregationSpec, *, hidden: bool = False) -> Robust:
    """Return the rule that a recipe names; `auto` is none where updates are `hidden`.

    Raises:
        UnknownNameError, ParameterError: There is none such.
    """
    if spec.robust != AUTO:
        return registry.create(spec.robust, **spec.robust_params)
    return registry.create("none" if hidden else DEFAULT, **({} if hidden else spec.robust_params))
