"""What it costs a coordinator to check that opinions are their devices' own, in processor time.

All of them come in one answer of one edge; the median of five calls.

    python -m bench.opinions --devices 1000
"""

import argparse
import time
from collections.abc import Iterator
from statistics import median

import numpy as np

from fedagent_coordinator.core.signed_answers import ClaimedRows, SignedAnswers
from fedagent_protocol.columns import claim_column, claims_in
from fedagent_protocol.opinions import Asked
from fedagent_testbed.world import seeded_identity

from .rows import Row, show

ASKED = Asked(site="lab", run="1" * 32, round=1, task="a" * 64, model="b" * 64)


def rows_of(devices: int) -> ClaimedRows:
    """Return the answer of an edge with so many devices."""
    score = np.random.default_rng(1).random(devices).astype("<f4")
    who = [seeded_identity(1, f"agent-{i}") for i in range(devices)]

    def said(asked: Asked, agent: str, row: int) -> bytes:
        return asked.scored(agent, "accuracy", float(score[row]), 20, 0.0)

    claims = [me.public_bytes + me.sign(said(ASKED, me.id, row)) for row, me in enumerate(who)]
    held = claims_in(claim_column(claims), devices)
    return ClaimedRows("edge", np.arange(devices), [me.id for me in who], held, said)


def spent_ms(answers: SignedAnswers, rows: ClaimedRows) -> float:
    before = time.process_time()
    theirs, _ = answers.judge(rows, ASKED)
    spent = time.process_time() - before
    assert theirs.all()
    return 1000 * spent


def rows(devices: int = 1000) -> Iterator[Row]:
    told, first, again = rows_of(devices), [], []
    for _ in range(5):
        answers = SignedAnswers()
        first.append(spent_ms(answers, told))
        again.append(spent_ms(answers, told))
    ms = {"first_ms": round(median(first), 1), "again_ms": round(median(again), 1)}
    yield {"bench": "opinions", "devices": devices, **ms}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1000)
    show(rows(parser.parse_args().devices))


if __name__ == "__main__":
    main()
