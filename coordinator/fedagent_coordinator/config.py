"""The coordinator's settings, read once."""

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
    check_site,
    listen_host,
    load_settings,
    shared_broker,
)

PREFIX = "FEDAGENT_COORDINATOR_"


class CoordinatorConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one coordinator.

    Attributes:
        data_dir: Where the database, the models and the identity are.
        recipe: The recipe's file.
        site: Only roles of one site see each other.
        sets: Overrides of the recipe, ``key.path=value``.
        policy: Policy instead of the recipe's.
        seed: Seed instead of the recipe's.
        new_run: End an open run of another recipe, or repeat a finished one.
        more_rounds: Let the run go on for so many rounds, if it has ended; 0 for not.
        init: Model that a new run begins from: a safetensors file, or a digest of one here.
        accept_lost_history: Go on although the database is older than it was.
        broker: ``auto``, ``embedded``, ``mosquitto``, or the URL of a broker.
        listen, port: Of a private broker; port 0 takes the last one, or a free one.
        discovery: Where to advertise.
        insecure: Allow listening and speaking beyond this machine without certificates.
        password_file: Holds the password of those addresses that name a user without one.
        wait_edges, wait_agents: What must be there before the first round.
        grace_s: How much longer than the recipe's max_wait an edge may take to report.
        linger_s: How long edges are told that the run ended.
        json_events: One JSON object per line on stdout.
        watch_parent: End when stdin ends.
    """

    data_dir: str
    recipe: str
    site: str = "default"
    sets: tuple[str, ...] = ()
    policy: str | None = None
    seed: Annotated[int, Meta(ge=0, lt=2**53)] | None = None
    new_run: bool = False
    accept_lost_history: bool = False
    broker: str = "auto"
    listen: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    discovery: Scope = "lan"
    tls: TlsSettings | None = None
    insecure: bool = False
    password_file: str | None = None
    wait_edges: Annotated[int, Meta(ge=1, le=100_000)] = 1
    wait_agents: Annotated[int, Meta(ge=1, le=10_000_000)] = 1
    grace_s: Annotated[float, Meta(ge=0, le=3600)] = 2.0
    linger_s: Annotated[float, Meta(ge=0, le=600)] = 1.0
    json_events: bool = False
    watch_parent: bool = False
    more_rounds: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    init: Annotated[str, Meta(max_length=4096)] = ""
    log_level: LogLevel = "info"

    @property
    def recipe_sets(self) -> tuple[str, ...]:
        """All overrides of the recipe; later ones win."""
        policy = () if self.policy is None else (f"policy.name={self.policy}",)
        seed = () if self.seed is None else (f"seed={self.seed}",)
        return (*self.sets, *policy, *seed)

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


def load(text: str | None, environment: Mapping[str, str] = os.environ) -> CoordinatorConfig:
    """Return the settings from JSON, a file, and ``FEDAGENT_COORDINATOR_*`` variables.

    Raises:
        SettingError: One line with the key and the hint.
    """
    config = load_settings(CoordinatorConfig, text, prefix=PREFIX, environment=environment)
    check_site(config.site)
    if config.new_run and config.more_rounds:
        raise SettingError("more_rounds", "does not go with new_run", "leave one of them out")
    config.shared()
    return structs.replace(config, listen=listen_host(config.listen))
