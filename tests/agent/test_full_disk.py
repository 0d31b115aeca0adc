"""A disk without room: every order gets its answer, nothing stays behind, and space heals.

``/dev/full`` behind a link refuses as a full disk does.
"""

from pathlib import Path

import pytest

from fedagent_agent.core.effects import Key
from fedagent_agent.trainer.frames import Train
from fedagent_protocol.messages import Decline, DeclineReason, UpdateOffer
from tests.fakes.hand_edge import EDGE, REAL, RUN, digest_of, joined, model_of

SMALL = model_of(22_000)
BIG = model_of(3 << 20)
FULL = Path("/dev/full")

pytestmark = pytest.mark.skipif(not FULL.exists(), reason="the system has no /dev/full")


def test_a_model_that_finds_no_room_is_declined_until_there_is_some(tmp_path: Path) -> None:
    edge, model = joined(tmp_path, task=REAL), BIG
    for number in (1, 2):
        (tmp_path / "models" / f"model.{digest_of(model)}.part").symlink_to(FULL)
        edge.serve(edge.order(number, model), model)
        decline = edge.said(Decline)[-1]
        assert (decline.round, decline.reason) == (number, DeclineReason.ERROR)
        assert decline.detail.startswith("disk: ")
        assert list((tmp_path / "models").iterdir()) == []
    edge.serve(edge.order(3, model), model)
    (start,) = edge.jobs(Train)
    assert Path(start.model).read_bytes() == model
    edge.train(start, model_of(22_000, 7))
    assert edge.said(UpdateOffer)[-1].round == 3


def test_an_update_without_training_that_finds_no_room_leaves_nothing(tmp_path: Path) -> None:
    edge = joined(tmp_path)
    (tmp_path / "outbox" / Key(EDGE, RUN, 1).file_name).symlink_to(FULL)
    edge.serve(edge.order(1, SMALL), SMALL)
    (decline,) = edge.said(Decline)
    assert (decline.reason, decline.detail[:6]) == (DeclineReason.ERROR, "disk: ")
    assert list((tmp_path / "outbox").iterdir()) == []
    assert edge.store._outputs == {}
    assert edge.round(2, SMALL).round == 2
