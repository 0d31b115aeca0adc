"""Nothing that one edge or one device says stops a run, or costs others what they earned."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from msgspec import Struct, structs

from fedagent_protocol import messages as m
from fedagent_protocol.codec import Direction, decode, encode
from fedagent_protocol.errors import ProtocolError
from tests.fakes.engine_field import RUN, Field, begun, settings, toy_edges
from tests.fakes.toy_edge import ToyEdge

DEAR = 10**15
HOSTILE: dict[type, tuple[object, ...]] = {
    bool: (True, False),
    int: (0, 1, 1024, 2**31, 2**53 - 1, -1),
    float: (0.0, -1.0, 1e308, -1e308, math.nan, math.inf),
    str: ("", "x", "\x1b[2J", "f" * 64),
    bytes: (b"", b"\x00", b"\xff" * 8, b"\x00" * 4096),
}


def spoilt(value: Any, draw: Callable[[Any], Any]) -> Any:
    """Return a value of the same shape with some part of it replaced."""
    if isinstance(value, Struct):
        name = draw(st.sampled_from(value.__struct_fields__))
        changed = {name: spoilt(getattr(value, name), draw)}
        try:
            return structs.replace(value, **changed)
        except ValueError:
            return value
    if isinstance(value, dict):
        return {**value, draw(st.sampled_from(["aggregate", "x"])): spoilt(0.0, draw)}
    if isinstance(value, tuple):
        kept = list(value)
        match draw(st.sampled_from(["drop", "twice", "spoil"])):
            case "spoil" if kept:
                at = draw(st.integers(0, len(kept) - 1))
                kept[at] = spoilt(kept[at], draw)
            case "twice":
                kept *= 2
            case _:
                kept = kept[1:]
        return tuple(kept)
    return draw(st.sampled_from(HOSTILE.get(type(value), (value,))))


def through_the_wire(message: m.EdgeToCoordinator) -> m.EdgeToCoordinator | None:
    try:
        found = decode(Direction.EDGE_TO_COORDINATOR, encode(message))
    except (ProtocolError, OverflowError):
        return None
    assert not isinstance(found, m.RoundOpen)
    return found  # type: ignore[return-value] # of that direction


@examples(max_examples=30, deadline=None)
@given(data=st.data(), placed=st.booleans())
def test_an_edge_that_says_anything_stops_nobody(data: st.DataObject, placed: bool) -> None:
    liar, honest = toy_edges(2, 2)
    field = Field([liar, honest], settings(count=4, placed=placed))
    up = field.up

    def told(edge: ToyEdge, message: m.EdgeToCoordinator) -> None:
        if edge is not liar or data.draw(st.integers(0, 2)):
            up(edge, message)
        elif (said := through_the_wire(spoilt(message, data.draw))) is not None:
            up(edge, said)

    receive = liar.receive

    def answered(message: m.CoordinatorToEdge, now: float) -> list[m.EdgeToCoordinator]:
        try:
            return receive(message, now)
        except KeyError:  # an order for an agent that it has invented
            return []

    field.up = told  # type: ignore[method-assign]
    liar.receive = answered  # type: ignore[method-assign]
    field.run(until=400.0)
    assert field.done == "rounds"
    assert set(field.settled) == set(field.reserved)


def claimed(edge: ToyEdge, hello: m.EdgeHello, round_: int) -> m.EdgeHello:
    return structs.replace(hello, epoch=edge.epoch, run=RUN, round=round_)


def test_a_crowd_of_edges_that_each_claim_one_round_more_stops_nobody() -> None:
    honest = toy_edges(1, 2)
    field = Field(honest, settings(count=20, every_s=1.0))
    crowd = iter(range(10_000))

    def claim() -> None:
        edge = ToyEdge(f"invented-{next(crowd)}", honest[0].manifest, [])
        numbers = field.engine.run.numbers
        field.hear(edge.id, claimed(edge, edge.hello(), max(numbers.round, numbers.settled + 1)))
        field.kernel.after(0.05, claim)

    field.kernel.after(0.5, claim)
    field.run(until=60.0)
    assert (field.done, len(field.settled)) == ("rounds", 20)


def test_a_coordinator_from_a_backup_goes_on_after_all_that_any_edge_was_ordered() -> None:
    edges = toy_edges(4, 2)
    given = settings(count=30, every_s=0.5, wait_edges=3, wait_agents=6)
    field = Field(edges, given, progress=begun(next_round=11, rounds_done=10))
    for edge, round_ in zip(edges, (15, 17, 12, 40), strict=True):
        edge.hello = partial(claimed, edge, edge.hello(), round_)  # type: ignore[method-assign]
    late = edges[3]
    late.mute = True
    field.kernel.after(3.0, lambda: setattr(late, "mute", False))
    for edge in 2 * edges[:3]:  # each is heard again before it has its answer
        field.up(edge, edge.hello())
    field.run(until=60.0, hello=False)
    assert (field.done, len(field.settled)) == ("rounds", 20)
    assert min(field.settled) > 17
    assert min(late.orders) > 40
    assert max(field.settled) < 100
    assert not [one for one in field.warned if "ignored" in one.text]


def make_dear(edge: ToyEdge) -> None:
    for agent in edge.agents:
        agent.price = DEAR


def test_a_device_that_is_dear_and_comes_first_does_not_end_the_run() -> None:
    field = Field(toy_edges(2, 3), settings(count=5, total_micro=100_000_000))
    first, later = field.edges
    make_dear(first)
    later.mute = True
    field.kernel.after(600.0, lambda: setattr(later, "mute", False))
    field.run(until=590.0, hello=False)
    assert (field.done, field.reasons()[-1]) == ("", "budget")
    field.kernel.run(until=field.kernel.now + 60.0)
    assert field.done == "rounds"


@pytest.mark.parametrize("back", [True, False])
def test_dear_devices_alone_end_a_run_in_two_minutes(back: bool) -> None:
    field = Field(toy_edges(2, 3), settings(count=500, every_s=1.0, total_micro=100_000_000))
    left, stays = field.edges
    make_dear(stays)
    field.kernel.after(10.0, lambda: setattr(left, "mute", True))
    if back:
        field.kernel.after(100.0, lambda: setattr(left, "mute", False))
    field.run(until=90.0)
    rounds = len(field.settled)
    assert (field.done, field.reasons()[-1], rounds > 3) == ("", "budget", True)
    field.kernel.run(until=field.kernel.now + 80.0)
    assert field.done == "budget"
    assert (len(field.settled) > rounds) == back
