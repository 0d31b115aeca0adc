"""What a device costs that nobody chooses."""

from collections.abc import Callable

from fedagent_agent.core.device import Readings
from fedagent_agent.core.effects import Measured
from fedagent_node.envelope import CERTIFIED
from fedagent_protocol.codec import encode

from . import ROUNDS, World, m

Make = Callable[..., World]
HOUR = 3600.0
ENVELOPE, CERTIFICATE = 107, 430
TRANSPORT = 200
"""Topic, MQTT, TLS, TCP and IP, and the acknowledgement."""


def test_a_device_that_is_not_chosen_sends_and_gets_little_in_an_hour(world: Make) -> None:
    played = world(agents=3, sets=(f"rounds.count={2 * ROUNDS}", "rounds.every_s=900"))
    node = played.here.agents["agent-2"]
    kernel, begins = played.here.kernel, played.here.kernel.now + 900.0
    away = Measured(Readings(compute=1.0, available=False, reason="on battery"))
    kernel.after(1.0, lambda: node.run(lambda: node.receive(away)))
    played.run(seconds=2 * HOUR, checked=False)
    assert played.here.coordinator.done
    sizes = [
        len(encode(one.message))
        + ENVELOPE
        + CERTIFICATE * (m.kind(one.message) in CERTIFIED)
        + TRANSPORT
        for one in played.wire.sent
        if node.id in (one.sender, one.to) and begins <= one.at < begins + HOUR
    ]
    assert len(sizes) >= HOUR / m.LONGEST_PERIOD_S, "it is there"
    assert sum(sizes) <= 100_000


def test_a_device_that_vanishes_is_known_to_be_away_within_20_s_where_a_round_waits_for_it(
    world: Make,
) -> None:
    sets = ("rounds.count=1", "rounds.deadline_s=90", "rounds.max_wait_s=100")
    made = world(agents=3, train_s=60.0, sets=sets).part("agent-1", after=5.0, seconds=60.0)
    here, away = made.here, list[bool]()

    def look() -> None:
        driver = here.edges["edge-0"].driver
        assert driver is not None
        sessions = driver.core.sessions  # type: ignore[attr-defined] # an edge's core
        away.extend(sessions.by_id[agent.id].away for agent in here.agents.values())

    here.kernel.after(25.0, look)
    made.run(checked=False)
    assert away == [False, True, False]
