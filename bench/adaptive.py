"""`adaptive` and the others on the radio model, 20 paired seeds: the table of the issue.

python -m bench.adaptive                    # all scenes, 20 seeds of 1000 rounds
python -m bench.adaptive --seeds 3 --scene stationary-166
"""

import argparse
from collections.abc import Iterator

import numpy as np

from fedagent_testbed.study import Comparison, compare, figure, load_recipe

from .rows import show

SCENES: dict[str, tuple[str, ...]] = {
    "stationary-166": ("world.radio.noise_dbm_hz=-166",),
    "stationary-160": ("world.radio.noise_dbm_hz=-160",),
    "change-166-160": ("world.radio.noise_dbm_hz=-166", "world.change.noise_dbm_hz=-160"),
    "change-160-166": ("world.radio.noise_dbm_hz=-160", "world.change.noise_dbm_hz=-166"),
    "churn-166": ("world.radio.noise_dbm_hz=-166", "world.churn.share=0.3", "world.churn.every=50"),
    "churn-160": ("world.radio.noise_dbm_hz=-160", "world.churn.share=0.3", "world.churn.every=50"),
    "liars-166": ("world.radio.noise_dbm_hz=-166", "world.liars.share=0.1"),
    "liars-160": ("world.radio.noise_dbm_hz=-160", "world.liars.share=0.1"),
}
STATIONARY = ("adaptive", "linucb", "cocs", "cocs-paper", "cucb", "random", "cheapest")
MOVING = ("adaptive", "linucb")


def measure(scene: str, seeds: int) -> dict[str, object]:
    """Run one scene; ratios are means over seeds of totals against `oracle-p`."""
    stationary = scene.startswith("stationary")
    names = STATIONARY if stationary else MOVING
    recipe = load_recipe("cocs-decisions", SCENES[scene])
    result = compare(recipe, names, seeds=seeds, jobs=2)
    best = np.array([run["wins"].sum() for run in result.reference["oracle-p"]], dtype=float)
    totals = {
        name: np.array([run["wins"].sum() for run in result.histories[name]], dtype=float)
        for name in names
    }
    lead = figure(list(totals["adaptive"] - totals["linucb"]))
    late = figure(list(_since(result, "adaptive", 50) - _since(result, "linucb", 50)))
    assert lead.mean is not None
    assert late.mean is not None
    ratio = {name: figure(list(total / best)).record()["mean"] for name, total in totals.items()}
    ours = ratio["adaptive"]
    assert isinstance(ours, float)
    if stationary:
        cocs, explored = ratio["cocs"], result.histories["cocs-paper"]
        assert isinstance(cocs, float)
        met = ours >= 0.995 and cocs >= 0.93
        met &= all(run["explored"].all() for run in explored)
    else:
        met = late.mean + (late.ci95 or 0.0) >= 0
    return {
        "bench": "adaptive",
        "scene": scene,
        "seeds": seeds,
        "rounds": recipe.rounds.count,
        "oracle_p": float(best.mean()),
        "ratio_to_oracle_p": {name: round(float(str(value)), 4) for name, value in ratio.items()},
        "lead_over_linucb": [lead.mean, lead.ci95],
        "lead_since_round_50": [late.mean, late.ci95],
        "recovery_ratio": _recovery(result) if scene.startswith("change") else None,
        "bar": "adaptive >= 0.995, cocs >= 0.93" if stationary else "not below linucb",
        "met": met,
    }


def _since(
    result: Comparison, name: str, start: int
) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.array([float(run["wins"][start:].sum()) for run in result.histories[name]])


def _recovery(result: Comparison) -> list[float]:
    """Return the ratio to `oracle-p` in the four 50-round windows after the change."""
    half = result.recipe.rounds.count // 2
    ratios = []
    for begin in range(half, half + 200, 50):
        window = slice(begin, begin + 50)
        ours = sum(int(run["wins"][window].sum()) for run in result.histories["adaptive"])
        best = sum(int(run["wins"][window].sum()) for run in result.reference["oracle-p"])
        ratios.append(round(ours / best, 4))
    return ratios


def rows(seeds: int = 20) -> Iterator[dict[str, object]]:
    return (measure(scene, seeds) for scene in SCENES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--scene", choices=list(SCENES))
    chosen = parser.parse_args()
    for scene in [chosen.scene] if chosen.scene else SCENES:
        show([measure(scene, chosen.seeds)])


if __name__ == "__main__":
    main()
