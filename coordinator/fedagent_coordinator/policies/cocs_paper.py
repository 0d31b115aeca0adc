"""`cocs-paper`: COCS, Algorithm 1, with the paper's own constants (ALGORITHMS section 3).

One counter per (client, edge, cell) and K(t) = t^z ln t: at t = 1000 a cell wants about
110 plays, and there are 25 cells in each of 150 pairs. So it never leaves exploration and
takes what is cheapest. Kept as the reference; `docs/policies/` says what to use instead.
"""

from collections.abc import Sequence

from fedagent_coordinator.solvers import Solver

from .cocs import CocsPolicy


class CocsPaperPolicy(CocsPolicy):
    """COCS to the letter.

    Args:
        horizon: T, the number of rounds that h is made for.
        h: Cells per dimension; None computes ceil(T^(1/(3 alpha + D))).
        alpha: Hoelder exponent of the success probability.
        features: The D context features, each scaled by its running bounds.
        solver: Name of the solver of P2, or a solver.
    """

    def __init__(
        self,
        *,
        horizon: int = 1000,
        h: int | None = None,
        alpha: float = 1.0,
        features: Sequence[str] = ("download_bps", "compute"),
        solver: str | Solver = "density",
    ) -> None:
        super().__init__(
            scope="pair",
            k_scale=1.0,
            logs=False,
            horizon=horizon,
            h=h,
            alpha=alpha,
            features=features,
            solver=solver,
        )
