"""What takes the place of the mean of a round's updates, so that a few cannot move it far.

`clipped-mean` needs norms only, and streams. The others look at all updates of a round, block of
coordinates by block: `Selected` by their inner products, `Trimmed` by the order of their values.
An update counts by its weight in `clipped-mean`; in the others all count alike.
"""

from abc import ABC, abstractmethod

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


class Trimmed(Robust):
    """The mean of each coordinate without its largest and smallest (Yin et al., ICML 2018)."""

    cap = 2.0
    share: float

    def cut(self, updates: int) -> int:
        """Return how many values are left out at each end."""
        return min(int(self.share * updates), (updates - 1) // 2)

    def location(self, values: Floats) -> Floats:
        """Return the location of float64[n, b], float64[b]; changes the order of its values."""
        cut, n = self.cut(len(values)), len(values)
        if cut:
            values = np.sort(values, axis=0)
        return np.asarray(values[cut : n - cut].mean(axis=0), dtype=np.float64)


class TrimmedMean(Trimmed):
    """Leave out a `share` at each end."""

    def __init__(self, *, share: float = 0.2) -> None:
        self.share = _share("trimmed-mean", share)


class Median(Trimmed):
    """The median of each coordinate."""

    share = 0.5


class Selected(Robust, ABC):
    """A combination of the updates, by their inner products alone."""

    cap = 2.0

    @abstractmethod
    def combination(self, gram: Floats) -> Floats:
        """Return the factors of the updates, float64[n], by float64[n, n]."""


class MultiKrum(Selected):
    """The mean of those closest to their neighbours (Blanchard et al., NeurIPS 2017).

    A `share` of n, f, is left out; a score is the sum of the n - f - 2 smallest squared distances.
    All that are kept weigh equally, whatever their samples (Flower's weigh by samples).
    """

    def __init__(self, *, share: float = 0.2) -> None:
        self.share = _share("multi-krum", share)

    def combination(self, gram: Floats) -> Floats:
        """Return the mean of the n - f best."""
        n, own = len(gram), np.diag(gram)
        out = min(int(np.ceil(self.share * n)), n - 1)
        square = np.maximum(own[:, None] + own[None, :] - 2.0 * gram, 0.0)
        np.fill_diagonal(square, np.inf)
        near = np.sort(square, axis=1)[:, : max(1, n - out - 2)]
        kept = np.argsort(near.sum(axis=1) if n > 1 else np.zeros(1), kind="stable")[: n - out]
        factors = np.zeros(n)
        factors[kept] = 1.0 / len(kept)
        return factors


class GeometricMedian(Selected):
    """What has the least sum of distances, by Weiszfeld's steps (Pillutla et al., 2022)."""

    def __init__(self, *, steps: int = 100) -> None:
        self.steps = int(number("geometric-median", "steps", steps, least=1, most=10_000))

    def combination(self, gram: Floats) -> Floats:
        """Return Weiszfeld's weights; distances are at least a millionth of the median one."""
        factors = np.full(len(gram), 1.0 / len(gram))
        for _ in range(self.steps):
            far = distances_to(gram, factors)
            least = 1e-6 * float(np.median(far))
            if not least > 0:
                break
            fresh = 1.0 / np.maximum(far, least)
            fresh /= fresh.sum()
            # By ratios: of an update that is 1e24 times too long even 1e-13 moves the model.
            moved, factors = float(np.abs(fresh / factors - 1.0).max()), fresh
            if moved < 1e-6:
                break
        return factors


class CenteredClipping(Selected):
    """Steps from the last model by differences that are shortened (Karimireddy et al., ICML 2021).

    Each of the `steps` shortens to `clip` times the median distance from where it begins.
    """

    def __init__(self, *, clip: float = 1.0, steps: int = 5) -> None:
        self.radius = number("centered-clipping", "clip", clip, most=1e6)
        self.steps = int(number("centered-clipping", "steps", steps, least=1, most=1000))

    def combination(self, gram: Floats) -> Floats:
        """Return the factors after the steps; their sum may be less than 1."""
        n = len(gram)
        factors = np.zeros(n)
        for _ in range(self.steps):
            far = distances_to(gram, factors)
            limit = self.radius * float(np.median(far))
            shorter = np.minimum(1.0, limit / np.maximum(far, max(limit, 1e-300)))
            factors = factors * (1.0 - shorter.mean()) + shorter / n
        return factors


def distances_to(gram: Floats, factors: Floats) -> Floats:
    """Return each update's distance to the combination by float64[n], float64[n]."""
    beside = gram @ factors
    return np.sqrt(np.maximum(np.diag(gram) - 2.0 * beside + factors @ beside, 0.0))


def _share(name: str, value: float) -> float:
    require(name, "share", value, value < 0.5, "less than 0.5")
    return number(name, "share", value, least=0.0, most=0.5)


DEFAULT = "clipped-mean"

registry: Registry[Robust] = Registry(
    kind="robust rule",
    package="fedagent_task.aggregation",
    builtin={
        "centered-clipping": "robust:CenteredClipping",
        "clipped-mean": "robust:ClippedMean",
        "geometric-median": "robust:GeometricMedian",
        "median": "robust:Median",
        "multi-krum": "robust:MultiKrum",
        "none": "robust:Robust",
        "trimmed-mean": "robust:TrimmedMean",
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
