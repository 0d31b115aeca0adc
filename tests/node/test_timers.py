"""Timers fire once, the earliest first; what one sets for now waits for the next time."""

import math

from fedagent_node.effects import Effect, Emit
from fedagent_node.timers import Timers


def test_a_name_is_due_once_when_it_was_set_for_last_or_soonest() -> None:
    timers, said = Timers(), list[str]()

    def says(name: str) -> list[Effect]:
        said.append(name)
        timers.at("again", 2.0, lambda _: says("again"))
        return [Emit(name, {})]

    timers.at("moved", 1.0, lambda _: says("wrong"))
    timers.at("moved", 2.0, lambda _: says("moved"))
    timers.sooner("soon", 3.0, lambda _: says("wrong"))
    timers.sooner("soon", 1.0, lambda _: says("soon"))
    timers.sooner("soon", 4.0, lambda _: says("wrong"))
    timers.at("stopped", 0.5, lambda _: says("wrong"))
    timers.stop("stopped")
    timers.at("never", math.inf, lambda _: says("wrong"))
    assert timers.next_due() == 1.0
    assert len(timers.tick(2.0)) == 2
    assert said == ["soon", "moved"]
    assert timers.next_due() == 2.0
    timers.tick(2.0)
    assert said[-1] == "again"
