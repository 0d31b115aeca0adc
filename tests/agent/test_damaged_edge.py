"""An authentic edge whose memory is damaged cannot mute a device beyond its restart."""

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedagent_protocol import messages as m
from tests.fakes.hand_edge import EDGE, IDLE, OTHER, RUN, HandEdge, joined, model_of, order_of

LAST = 2**53 - 1
MODEL = model_of(2000)
number = st.one_of(st.integers(0, 30), st.sampled_from([m.MAX_ROUNDS_AHEAD, LAST - 1, LAST]))
said = st.one_of(
    st.builds(lambda n: order_of(IDLE, n, MODEL, 4096), number),
    st.builds(m.RoundClosed, run=st.just(RUN), round=number),
    st.builds(m.Welcome, edge=st.just(EDGE), run=st.just(RUN), round=number),
)


def heal(edge: HandEdge, round_: int, name: str = EDGE) -> None:
    """Restart the edge: a new epoch, a hello, a welcome that says where it is."""
    edge.now += 2.0
    edge.say(m.EdgeBeacon(edge=name, epoch="7" * 32), edge=name)
    edge.say(m.Welcome(edge=name, run=RUN, round=round_), edge=name)


@settings(max_examples=20, deadline=None)
@given(st.lists(said, max_size=6))
@example([order_of(IDLE, LAST, MODEL, 4096)])
@example([order_of(IDLE, m.MAX_ROUNDS_AHEAD, MODEL, 4096), order_of(IDLE, LAST, MODEL, 4096)])
def test_after_its_restart_and_a_welcome_the_next_order_is_followed(damage: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        edge = joined(Path(folder))
        for message in damage:
            edge.serve(edge.say(message), MODEL)
        heal(edge, 30)
        assert edge.round(31, MODEL).round == 31


def test_an_order_of_the_last_round_of_all_mutes_nobody(tmp_path: Path) -> None:
    edge = joined(tmp_path, OTHER)
    edge.order(LAST, MODEL, edge=OTHER)
    (decline,) = edge.said(m.Decline)
    assert "far beyond round 0" in decline.detail
    assert edge.round(1, MODEL).round == 1, "at the other edge, without any restart"
