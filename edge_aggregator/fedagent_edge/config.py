"""The edge's settings, read once."""

import os
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct, structs

from fedagent_node.address import BrokerAddress
from fedagent_node.settings import (
    LogLevel,
    Scope,
    SettingError,
    TlsSettings,
    broker_address,
    check_site,
    listen_host,
    load_settings,
    shared_broker,
)
from fedagent_protocol.messages import CHUNK_BYTES, MAX_CHUNK_BYTES

PREFIX = "FEDAGENT_EDGE_"
_MICRO = 1e-6


class EdgeConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one edge aggregator.

    Attributes:
        data_dir: Where identity, models, spool and state are.
        site: Only roles of one site see each other.
        name: For people; shown by the coordinator.
        broker: ``auto``, ``embedded``, ``mosquitto``, or the address of a shared broker.
        listen, port: Of a private broker; port 0 takes the last one, or a free one.
        coordinator: Address of the coordinator's broker where zeroconf finds none.
        discovery: Where to advertise and look.
        insecure: Allow listening and speaking beyond this machine without certificates.
        password_file: Holds the password of those addresses that name a user without one.
        chunk_bytes: Size of the pieces of models; smaller for slow links.
        credit_bytes: Cap on what all agents may have under way to this edge.
        need_wait_ms: How long the model waits for agents that have not answered.
        rent: Credits it asks for aggregating one round of a placed run.
        json_events: One JSON object per line on stdout.
        watch_parent: End when stdin ends.
    """

    data_dir: str
    site: str = "default"
    name: Annotated[str, Meta(max_length=100)] = ""
    broker: str = "auto"
    listen: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    coordinator: str | None = None
    discovery: Scope = "lan"
    tls: TlsSettings | None = None
    insecure: bool = False
    password_file: str | None = None
    chunk_bytes: Annotated[int, Meta(ge=1024, le=MAX_CHUNK_BYTES)] = CHUNK_BYTES
    credit_bytes: Annotated[int, Meta(ge=1024, le=1 << 30)] = 4 << 20
    need_wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 50
    rent: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    json_events: bool = False
    watch_parent: bool = False
    log_level: LogLevel = "info"

    def shared(self) -> BrokerAddress | None:
        """Return the address of a shared broker, or None for a private one.

        Raises:
            SettingError: It is no address, or not covered, or lacks a password.
        """
        return shared_broker(
            self.broker,
            tls=self.tls is not None,
            insecure=self.insecure,
            password_file=self.password_file,
        )

    def typed_coordinator(self) -> BrokerAddress | None:
        """Return the address of the coordinator's broker where it is typed; see `shared`."""
        if self.coordinator is None:
            return None
        return broker_address(
            "coordinator",
            self.coordinator,
            tls=self.tls is not None,
            insecure=self.insecure,
            password_file=self.password_file,
        )


def load(text: str | None, environment: Mapping[str, str] = os.environ) -> EdgeConfig:
    """Return the settings from JSON, a file, and ``FEDAGENT_EDGE_*`` variables.

    Raises:
        SettingError: One line with the key and the hint.
    """
    config = load_settings(EdgeConfig, text, prefix=PREFIX, environment=environment)
    check_site(config.site)
    if 0 < config.rent < _MICRO:
        raise SettingError("rent", "is less than a micro-credit", "write 0, or 0.000001 or more")
    config.shared()
    config.typed_coordinator()
    return structs.replace(config, listen=listen_host(config.listen))
