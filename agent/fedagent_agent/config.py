"""The agent's settings, read once."""

import os
import re
from typing import Annotated, ClassVar, Self

from msgspec import Meta

from fedagent_node.address import BrokerAddress
from fedagent_node.settings import LINK, JoinText, Name, NodeConfig, Seed, SettingError
from fedagent_protocol.option import Option

from .availability import LimitsSettings
from .core.device import PriceSettings
from .core.opinions import PrivacySettings
from .streams import parse_stream
from .streams.spec import StreamError

LIMITS = "Resource limits"
_HALF = 0.5
"""Share of the machine's memory that a training may take unless it is configured."""
_PEER = re.compile(r"([a-z0-9][a-z0-9-]{0,63})(?::([0-9.eE+-]{1,20}))?")
_MAX_KM = 1e6


class AgentConfig(NodeConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one device."""

    prefix: ClassVar[str] = "FEDAGENT_AGENT_"
    stream: Annotated[
        str,
        Meta(min_length=1, max_length=4000),
        Option("What to learn from: `digits`, a CSV file that grows, an MQTT topic."),
    ]
    held_out: Annotated[
        str,
        Meta(max_length=4000),
        Option(
            "A second stream, used for opinions only and never for training.",
            metavar="STREAM",
            default="samples not yet trained on",
        ),
    ] = ""
    name: Name = ""
    price: PriceSettings = PriceSettings()
    seed: Seed = None  # of stream and learner; by default it follows from the identity
    slow_s: Annotated[
        float, Meta(ge=0, le=3600), Option("Extra seconds of training, to simulate a slow device.")
    ] = 0.0
    load_limit_s: Annotated[
        float,
        Meta(ge=0, le=86_400),
        Option(
            "Seconds of computation that one round may take; 0 for no limit.",
            name="--load-limit",
            metavar="SECONDS",
            panel=LIMITS,
        ),
    ] = 0.0
    """The pi of ALGORITHMS."""
    nice: Annotated[
        int, Meta(ge=0, le=19), Option("Niceness of the training, 0 to 19.", panel=LIMITS)
    ] = 10
    memory_limit: Annotated[
        Annotated[int, Meta(ge=0, le=1 << 20)] | None,
        Option(
            "Memory that a training may take; 0 for no limit.",
            metavar="MB",
            default="half of the machine's",
            panel=LIMITS,
        ),
    ] = None
    limits: Annotated[LimitsSettings, Option("When the device trains.", panel=LIMITS)] = (
        LimitsSettings()
    )
    privacy: Annotated[
        PrivacySettings, Option("What opinions may cost.", panel="Privacy of opinions")
    ] = PrivacySettings()
    edges: Annotated[
        tuple[str, ...],
        Option(
            "Address of an edge, where zeroconf does not reach. Repeatable.",
            name="--edge",
            metavar="HOST:PORT",
            panel=LINK,
        ),
    ] = ()
    broker: Annotated[
        str | None, Option("One shared broker that all edges use.", metavar="URL", panel=LINK)
    ] = None
    """Nothing is looked for where it is set."""
    peers: Annotated[
        tuple[str, ...],
        Meta(max_length=64),
        Option(
            "A neighbour to decide with, for tasks with declared neighbours. Repeatable.",
            name="--peer",
            metavar="ID[:KM]",
            panel=LINK,
        ),
    ] = ()
    position: Annotated[
        tuple[float, float] | None,
        Option(
            "Position of this device in kilometres; edges see it, and the device joins the "
            "nearest edge.",
            metavar="X_KM,Y_KM",
            example="0.12,-0.4",
            panel=LINK,
        ),
    ] = None
    """In a frame that all devices of a site share."""
    join: JoinText = ""

    def checked(self) -> Self:
        """Return the settings, with addresses, neighbours, place and streams looked over."""
        super().checked()
        self.check_invitation("agent")
        self.typed_addresses()
        self.neighbours()
        if self.position is not None and not all(abs(v) <= _MAX_KM for v in self.position):
            raise SettingError("position", "is not a place", f"two numbers within ±{_MAX_KM:g} km")
        _check_stream("stream", self.stream)
        if self.held_out:
            _check_stream("held_out", self.held_out)
        if self.held_out == self.stream:
            hint = "name another stream, or leave it out: then samples not yet trained on are used"
            raise SettingError("held_out", "is the same stream as the one for training", hint)
        return self

    def seed_of(self, agent: str) -> int:
        """Return the seed, by default of the agent with this id."""
        return self.seed if self.seed is not None else int(agent[:8], 16)

    def neighbours(self) -> dict[str, float]:
        """Return the declared neighbours, and how far they are in kilometres."""
        return dict(_neighbour(text) for text in self.peers)

    def typed_addresses(self) -> tuple[BrokerAddress, ...]:
        """Return the brokers to connect to whatever zeroconf finds; see `address`."""
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
            return 0  # unknown here


def _check_stream(key: str, text: str) -> None:
    """Check that a stream is one; an error of `stream` names its part."""
    try:
        parse_stream(text).check()
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
        raise SettingError("peers", f"{text!r} is not a neighbour", "write ID or ID:KM")
    return found[1], far
