"""The agent's settings, read once."""

import os
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from fedagent_protocol.transport.settings import (
    LogLevel,
    Scope,
    SettingError,
    TlsSettings,
    broker_address,
    check_site,
    load_settings,
)

from .core.reporting import Price
from .streams.spec import StreamError, parse_stream

PREFIX = "FEDAGENT_AGENT_"
MICRO = 1_000_000
Credits = Annotated[float, Meta(ge=0, le=1e6)]


class PriceSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The own price function, in credits: ``base + per_compute * free cores``."""

    base: Credits = 0.1
    per_compute: Credits = 0.2

    def price(self) -> Price:
        """Return the function in micro-credits."""
        return Price(round(self.base * MICRO), round(self.per_compute * MICRO))


class AgentConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one device.

    Attributes:
        data_dir: Where identity, outbox and models are.
        stream: What to learn from; see `streams.spec`.
        site: Only roles of one site see each other.
        edges: Addresses of edges that zeroconf does not find.
        broker: Address of a broker that several edges share.
        discovery: Where to look for edges; not used when `broker` is given.
        insecure: Allow brokers beyond this machine without certificates.
        price: What a round costs; never falls with more compute.
        seed: Of stream and learner; by default it follows from the identity.
        name: For people; edges and the coordinator see it.
        slow_s: Extra seconds of every training, for demos and tests.
        json_events: One JSON object per line on stdout.
        watch_parent: End when stdin ends.
    """

    data_dir: str
    stream: Annotated[str, Meta(min_length=1, max_length=4000)]
    site: str = "default"
    edges: tuple[str, ...] = ()
    broker: str | None = None
    discovery: Scope = "lan"
    tls: TlsSettings | None = None
    insecure: bool = False
    price: PriceSettings = PriceSettings()
    seed: Annotated[int, Meta(ge=0, lt=2**53)] | None = None
    name: Annotated[str, Meta(max_length=100)] = ""
    slow_s: Annotated[float, Meta(ge=0, le=3600)] = 0.0
    json_events: bool = False
    watch_parent: bool = False
    log_level: LogLevel = "info"


def load(text: str | None, environment: Mapping[str, str] = os.environ) -> AgentConfig:
    """Return the settings from JSON, a file, and ``FEDAGENT_AGENT_*`` variables.

    Raises:
        SettingError: One line with the key and the mend.
    """
    config = load_settings(AgentConfig, text, prefix=PREFIX, environment=environment)
    check_site(config.site)
    tls, insecure = config.tls is not None, config.insecure
    for edge in config.edges:
        broker_address("edges", edge, tls=tls, insecure=insecure)
    if config.broker is not None:
        broker_address("broker", config.broker, tls=tls, insecure=insecure)
    try:
        parse_stream(config.stream)
    except StreamError as error:
        raise SettingError(error.key, error.reason, error.mend) from error
    return config
