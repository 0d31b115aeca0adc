"""The agent's settings, read once."""

import os
import re
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from fedagent_node.address import BrokerAddress
from fedagent_node.settings import (
    NodeConfig,
    SettingError,
    check_site,
    load_settings,
)

from .availability import LimitsSettings
from .core.device import PriceSettings
from .core.opinions import PrivacySettings
from .streams.spec import MqttSpec, StreamError, parse_stream

PREFIX = "FEDAGENT_AGENT_"
_RENAMED = {
    "care": "limits",
    "least_battery": "min_battery",
    "least_memory": "min_memory",
    "most_temperature": "max_temperature",
    "most_load": "max_load",
    "most_epsilon": "max_epsilon",
}
_HALF = 0.5
"""Share of the machine's memory that a training may take unless it is configured."""
_PEER = re.compile(r"([a-z0-9][a-z0-9-]{0,63})(?::([0-9.eE+-]{1,20}))?")
_MAX_KM = 1e6


class AgentConfig(NodeConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one device."""

    stream: Annotated[str, Meta(min_length=1, max_length=4000)]
    """What to learn from; see `streams.spec`."""
    held_out: Annotated[str, Meta(max_length=4000)] = ""
    """A second stream for evaluations, never learnt from; by default they rest on what of
    `stream` is not learnt from yet."""
    edges: tuple[str, ...] = ()
    """Addresses of edges that zeroconf does not find."""
    broker: str | None = None
    """Address of a broker that several edges share; nothing is looked for then."""
    peers: Annotated[tuple[str, ...], Meta(max_length=64)] = ()
    """Neighbours in democratized analytics with ``graph = "declared"``: ``ID`` or ``ID:KM``."""
    position: tuple[float, float] | None = None
    """x and y in kilometres in a frame that all devices of a site share; edges see it, and join
    the nearest."""
    price: PriceSettings = PriceSettings()
    seed: Annotated[int, Meta(ge=0, lt=2**53)] | None = None
    """Of stream and learner; by default it follows from the identity."""
    name: Annotated[str, Meta(max_length=100)] = ""
    """For people; edges and the coordinator see it."""
    slow_s: Annotated[float, Meta(ge=0, le=3600)] = 0.0
    """Extra seconds of every training, for demos and tests."""
    load_limit_s: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    """pi, seconds of computation that a round may take; 0 for no limit."""
    nice: Annotated[int, Meta(ge=0, le=19)] = 10
    """Niceness of the training, so that it stays behind the device's own work."""
    memory_limit: Annotated[int, Meta(ge=0, le=1 << 20)] | None = None
    """Megabytes that a training may take; 0 for no limit, absent for half of the machine's."""
    limits: LimitsSettings = LimitsSettings()
    privacy: PrivacySettings = PrivacySettings()

    def seed_of(self, agent: str) -> int:
        """Return the seed, by default of the agent with this id."""
        return self.seed if self.seed is not None else int(agent[:8], 16)

    def neighbours(self) -> dict[str, float]:
        """Return the declared neighbours, and how far they are in kilometres.

        Raises:
            SettingError: One of them is not ``ID`` or ``ID:KM``.
        """
        return dict(_neighbour(text) for text in self.peers)

    def typed_addresses(self) -> tuple[BrokerAddress, ...]:
        """Return the brokers to connect to whatever zeroconf says.

        Raises:
            SettingError: One of them is no address, or not covered, or lacks a password.
        """
        typed = [("edges", text) for text in self.edges]
        if self.broker is not None:
            typed.append(("broker", self.broker))
        return tuple(self.address(key, text) for key, text in typed)

    def memory_bytes(self) -> int:
        """Return the bound of a training's memory in bytes; 0 for none."""
        if self.memory_limit is not None:
            return self.memory_limit << 20
        try:
            return int(_HALF * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        except (ValueError, OSError):
            return 0  # the system does not tell


def load(text: str | None, environment: Mapping[str, str] = os.environ) -> AgentConfig:
    """Return the settings from JSON, a file, and ``FEDAGENT_AGENT_*`` variables.

    Raises:
        SettingError: One line with the key and the hint.
    """
    config = load_settings(
        AgentConfig, text, prefix=PREFIX, environment=environment, renamed=_RENAMED
    )
    check_site(config.site)
    config.typed_addresses()
    config.neighbours()
    if config.position is not None and not all(abs(v) <= _MAX_KM for v in config.position):
        raise SettingError("position", "is not a place", f"two numbers within ±{_MAX_KM:g} km")
    _check_stream("stream", config.stream)
    if config.held_out:
        _check_stream("held_out", config.held_out)
    if config.held_out == config.stream:
        hint = "name another stream, or leave it out: then what is not learnt from yet counts"
        raise SettingError("held_out", "is the stream that is learnt from", hint)
    return config


def _check_stream(key: str, text: str) -> None:
    """Check that a stream is one; what is wrong with `stream` is told by its own part."""
    try:
        spec = parse_stream(text)
        if isinstance(spec, MqttSpec):
            spec.address()
    except StreamError as error:
        named = error.key if key == "stream" else key
        raise SettingError(named, error.reason, error.hint) from error


def _neighbour(text: str) -> tuple[str, float]:
    """Return the id and the distance of ``ID`` or ``ID:KM``; without one, 1 km."""
    found = _PEER.fullmatch(text)
    try:
        far = float(found[2] or 1.0) if found is not None else -1.0
    except ValueError:
        far = -1.0
    if found is None or not 0 <= far <= _MAX_KM:
        raise SettingError("peers", f"{text!r} is no neighbour", "write ID or ID:KM")
    return found[1], far
