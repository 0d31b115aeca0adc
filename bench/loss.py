"""A device behind a radio with 30 % loss, 800 KB, a deadline of 4 s: which order it contributes to.

``python -m bench.loss [FIELDS]``: at the defaults, and where the recipe waits; dropped at the
device, and as a radio loses. Needs root and nft.
"""

import sys
import tempfile
from pathlib import Path

from tests.netns.test_loss import contributes_in

from .rows import Row, Rows, show

WAITS = "--set rounds.max_wait_s=20 --set rounds.min_updates=2"


def measure(name: str, sets: str, fields: int, *, radio: bool = False) -> Row:
    """Play fields one after the other."""
    orders = []
    for _ in range(fields):
        with tempfile.TemporaryDirectory() as folder:
            orders.append(contributes_in(Path(folder) / "field", sets, radio=radio))
    contributed = sum(map(bool, orders))
    return {
        "bench": "loss",
        "recipe": name,
        "radio": radio,
        "fields": fields,
        "order": orders,
        "contributed": contributed,
        "met": contributed == fields,
    }


def rows(fields: int = 10) -> Rows:
    """Yield the defaults, and a recipe that waits."""
    for radio in (False, True):
        yield measure("defaults", "", fields, radio=radio)
        yield measure("waits", WAITS, fields, radio=radio)


if __name__ == "__main__":
    show(rows(int((sys.argv[1:] or ["10"])[0])))
