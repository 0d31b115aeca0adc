"""What agents' samples add up to is added up at the edge; what cannot be is left out."""

import numpy as np
import pytest

from fedagent_node.effects import Warn
from fedagent_protocol import messages as m
from fedagent_task.moments import Moments
from fedagent_task.recipe.spec import DataSpec, LimitsSpec, ModelSpec, TaskSpec
from fedagent_task.recipe.text import task_bytes

from .evaluators import EPOCH, MODEL, RUN, Hall

TASK = TaskSpec(
    model=ModelSpec(kind="softmax", features=2, classes=2),
    data=DataSpec(standardize=True),
    limits=LimitsSpec(max_samples=100),
)
GOOD = Moments.of(np.array([[1, 2], [3, 4.5]], np.float32))


def hall(*agents: str) -> Hall:
    made = Hall(body=task_bytes(TASK))
    made.hello(*agents)
    made.open(0, mode="moments", slot=1)
    return made


def tell(edge: Hall, agent: str, found: Moments, samples: int | None = None) -> None:
    count = found.count if samples is None else samples
    edge.opinion(agent, 0.0, round=0, samples=count, moments=found.encode(), metric="moments")


def test_all_agents_become_one_sum_and_none_is_told_apart() -> None:
    edge = hall("a", "b", "c")
    assert edge.down("a", m.OpinionCall)[0].mode is m.OpinionMode.MOMENTS
    tell(edge, "a", GOOD)
    tell(edge, "b", Moments.of(np.array([[7, 7]], np.float32)))
    assert not edge.up(m.EdgeMoments)
    edge.opinion("c", 0.0, round=0, samples=0, reason="nothing has arrived")
    assert [note for note in edge.effects if isinstance(note, Warn)] == [
        Warn("c", "sent no statistics: nothing has arrived")
    ]
    (told,) = edge.up(m.EdgeMoments)
    together = Moments.of(np.array([[1, 2], [7, 7], [3, 4.5]], np.float32))
    assert told == m.EdgeMoments(
        run=RUN, epoch=EPOCH, model=MODEL, moments=together.encode(), agents=2, asked=3,
        reasons={"none": 1},
    )  # fmt: skip
    edge.wait(2.5)
    assert len(edge.up(m.EdgeMoments)) == 3, "until the receipt"
    edge.tell(m.OpinionsReceipt(run=RUN, round=0))
    edge.wait(5)
    assert len(edge.up(m.EdgeMoments)) == 3


@pytest.mark.parametrize(
    ("found", "samples", "word"),
    [
        (GOOD, 3, "count"),
        (Moments(101, GOOD.sums, GOOD.squares), None, "count"),
        (Moments(2, GOOD.sums[:1], GOOD.squares[:1]), None, "form"),
        (Moments(2, GOOD.sums, (0, 0)), None, "square"),
        (Moments(2, GOOD.sums, (-1, 1)), None, "square"),
        (Moments(1, (1 << 250, 0), GOOD.squares), None, "sum"),
    ],
)
def test_statistics_that_cannot_be_are_counted_and_left_out(
    found: Moments, samples: int | None, word: str
) -> None:
    edge = hall("good", "bad")
    tell(edge, "bad", found, samples)
    assert [n.text for n in edge.effects if isinstance(n, Warn)] == [
        f"its statistics are invalid: {word}"
    ]
    tell(edge, "good", GOOD)
    tell(edge, "bad", GOOD)  # once is enough
    (told,) = edge.up(m.EdgeMoments)
    assert (told.moments, told.agents, told.reasons) == (GOOD.encode(), 1, {"invalid": 1})
