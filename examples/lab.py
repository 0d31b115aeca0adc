"""A broken sensor among three: what a plain regression makes of it, and what a model of one's own.

Needs the package beside it: pip install ./lab-package
"""

from pathlib import Path

import numpy as np

import fedagent

RECIPE = Path(__file__).with_name("wifi-lab.toml")


def room(rng, broken=False):
    """Return 300 samples of one room: two sensors, and the temperature that they tell of."""
    x = rng.uniform(-1, 1, (300, 2))
    y = x @ [2.0, -1.0] + 0.5 + rng.normal(0, 0.1, 300)
    if broken:
        y[::10] += 50.0
    return x, y


if __name__ == "__main__":
    rng = np.random.default_rng(1)
    rooms = [room(rng), room(rng), room(rng, broken=True)]
    for kind in ("linear", "lab-package:huber"):
        run = fedagent.run_local(
            str(RECIPE),
            agents=len(rooms),
            data=rooms,
            test=room(rng),
            policy="strongest",
            sets={"model.kind": kind},
            progress=False,
        )
        print(f"{kind}: error {run.metrics['rmse']:.2f}")
