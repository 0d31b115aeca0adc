"""The agent's settings, read once."""

import os
import re
from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct

from fedagent_node.address import BrokerAddress
from fedagent_node.settings import (
    LogLevel,
    Scope,
    SettingError,
    TlsSettings,
    broker_address,
    check_site,
    load_settings,
)

from .availability import ResourceLimits
from .core.calls import PrivacyLimits
from .core.reporting import Price
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
MICRO = 1_000_000
_HALF = 0.5
"""Share of the machine's memory that a training may take unless it is configured."""
_PEER = re.compile(r"([a-z0-9][a-z0-9-]{0,63})(?::([0-9.eE+-]{1,20}))?")
_MAX_KM = 1e6
Credits = Annotated[float, Meta(ge=0, le=1e6)]


class PriceSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The own price function, in credits: ``base + per_compute * free cores``."""

    base: Credits = 0.1
    per_compute: Credits = 0.2

    def price(self) -> Price:
        """Return the function in micro-credits."""
        return Price(round(self.base * MICRO), round(self.per_compute * MICRO))


class LimitsSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When this device trains; each rule can be moved, and switched off, by itself.

    Attributes:
        min_battery: Percent of charge below which it does not train on battery; 0: any.
        mains_only: Never train on battery.
        max_temperature: Degrees Celsius above which it does not train; 0: any.
        when_throttled: Train also while it slows itself down.
        metered: Whether the link costs money; ``auto`` asks NetworkManager.
        on_metered: Train also over such a link.
        min_memory: Megabytes that must be free; 0: any.
        max_load: Percent of the processors that other programs may use; 100: any.
    """

    min_battery: Annotated[float, Meta(ge=0, le=100)] = 30.0
    mains_only: bool = False
    max_temperature: Annotated[float, Meta(ge=0, le=200)] = 85.0
    when_throttled: bool = False
    metered: Literal["auto", "yes", "no"] = "auto"
    on_metered: bool = False
    min_memory: Annotated[int, Meta(ge=0, le=1 << 20)] = 64
    max_load: Annotated[float, Meta(ge=0, le=100)] = 100.0

    def limits(self) -> ResourceLimits:
        """Return the rules' limits in SI units and fractions."""
        return ResourceLimits(
            min_battery=self.min_battery / 100,
            mains_only=self.mains_only,
            max_temperature_c=self.max_temperature,
            when_throttled=self.when_throttled,
            on_metered=self.on_metered,
            min_memory_bytes=self.min_memory << 20,
            max_load=self.max_load / 100,
        )

    @property
    def link_is_metered(self) -> bool | None:
        """What the owner says of the link; None: ask."""
        return {"auto": None, "yes": True, "no": False}[self.metered]


class PrivacySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the owner grants to calls for opinions; with an epsilon, never one without noise.

    Attributes:
        max_epsilon: Maximum epsilon per opinion. Unset: no limit, and noise is not required.
        total_epsilon: Total epsilon per run. Unset: no limit.
        lifetime_epsilon: Total epsilon of all runs of this device. Unset: no limit.
        declared_only: Whether opinions go to `peers` alone, and to no edge.
    """

    max_epsilon: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    total_epsilon: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    lifetime_epsilon: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    declared_only: bool = False

    def limits(self) -> PrivacyLimits:
        """Return the limits."""
        return PrivacyLimits(
            self.max_epsilon, self.total_epsilon, self.lifetime_epsilon, self.declared_only
        )


class AgentConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one device.

    Attributes:
        data_dir: Where identity, outbox and models are.
        stream: What to learn from; see `streams.spec`.
        held_out: A second stream that opinions rest on, never learnt from; by default they
            rest on what of `stream` is not learnt from yet.
        site: Only roles of one site see each other.
        edges: Addresses of edges that zeroconf does not find.
        broker: Address of a broker that several edges share.
        peers: Neighbours in democratized analytics with ``graph = "declared"``, each an id
            and how many kilometres it is away: ``ID`` or ``ID:KM``.
        position: x and y in kilometres in a frame that all devices of a site share; edges
            see it, and join the nearest.
        discovery: Where to look for edges; not used when `broker` is given.
        insecure: Allow brokers beyond this machine without certificates.
        password_file: Holds the password of those addresses that name a user without one.
        price: What a round costs; never falls with more compute.
        seed: Of stream and learner; by default it follows from the identity.
        name: For people; edges and the coordinator see it.
        slow_s: Extra seconds of every training, for demos and tests.
        load_limit_s: pi, seconds of computation that a round may take; 0 for no limit.
        nice: Niceness of the training, so that it stays behind the device's own work.
        memory_limit: Megabytes that a training may take; 0 for no limit, absent for half
            of the machine's.
        care: When the device trains.
        privacy: What opinions may cost.
        json_events: One JSON object per line on stdout.
        watch_parent: End when stdin ends.
    """

    data_dir: str
    stream: Annotated[str, Meta(min_length=1, max_length=4000)]
    held_out: Annotated[str, Meta(max_length=4000)] = ""
    site: str = "default"
    edges: tuple[str, ...] = ()
    broker: str | None = None
    peers: Annotated[tuple[str, ...], Meta(max_length=64)] = ()
    position: tuple[float, float] | None = None
    discovery: Scope = "lan"
    tls: TlsSettings | None = None
    insecure: bool = False
    password_file: str | None = None
    price: PriceSettings = PriceSettings()
    seed: Annotated[int, Meta(ge=0, lt=2**53)] | None = None
    name: Annotated[str, Meta(max_length=100)] = ""
    slow_s: Annotated[float, Meta(ge=0, le=3600)] = 0.0
    load_limit_s: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    nice: Annotated[int, Meta(ge=0, le=19)] = 10
    memory_limit: Annotated[int, Meta(ge=0, le=1 << 20)] | None = None
    limits: LimitsSettings = LimitsSettings()
    privacy: PrivacySettings = PrivacySettings()
    json_events: bool = False
    watch_parent: bool = False
    log_level: LogLevel = "info"

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
        return tuple(
            broker_address(
                key,
                text,
                tls=self.tls is not None,
                insecure=self.insecure,
                password_file=self.password_file,
            )
            for key, text in typed
        )

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
