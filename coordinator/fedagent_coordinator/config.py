"""The coordinator's configuration: one frozen record, read once, checked at the door."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from fedagent_protocol.errors import TopicError
from fedagent_protocol.topics import check_id
from fedagent_protocol.transport.address import BrokerAddress, TlsFiles
from fedagent_protocol.transport.errors import AddressError

from .errors import CoordinatorError

ENVIRONMENT = "FEDAGENT_COORDINATOR_"
"""Prefix of environment variables: ``FEDAGENT_COORDINATOR_DATA_DIR`` sets ``data_dir``."""

_PRIVATE = ("auto", "embedded", "mosquitto")


class ConfigError(CoordinatorError):
    """Raised when a setting is unknown, missing or wrong; names the key and the mend."""

    def __init__(self, key: str, problem: str, mend: str) -> None:
        super().__init__(key, problem, mend)
        self.key = key
        self.problem = problem
        self.mend = mend

    def __str__(self) -> str:
        return f"{self.key}: {self.problem}; {self.mend}"


class TlsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """PEM files of the authority, our certificate and our key."""

    ca: str
    cert: str
    key: str

    def files(self) -> TlsFiles:
        """Return the paths."""
        return TlsFiles(Path(self.ca), Path(self.cert), Path(self.key))


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
        accept_lost_history: Go on although the database is older than it was.
        broker: ``auto``, ``embedded``, ``mosquitto``, or the URL of a broker.
        listen, port: Of a private broker; port 0 takes the last one, or a free one.
        discovery: Where to advertise.
        insecure: Allow a listener beyond loopback without certificates.
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
    discovery: Literal["lan", "loopback", "off"] = "lan"
    tls: TlsConfig | None = None
    insecure: bool = False
    wait_edges: Annotated[int, Meta(ge=1, le=100_000)] = 1
    wait_agents: Annotated[int, Meta(ge=1, le=10_000_000)] = 1
    grace_s: Annotated[float, Meta(ge=0, le=3600)] = 2.0
    linger_s: Annotated[float, Meta(ge=0, le=600)] = 1.0
    json_events: bool = False
    watch_parent: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def broker_address(self) -> BrokerAddress | None:
        """The shared broker, or None for a private one.

        Raises:
            ConfigError: It is neither a kind of broker nor a URL.
        """
        if self.broker in _PRIVATE:
            return None
        try:
            return BrokerAddress.parse(self.broker)
        except AddressError as error:
            mend = "write auto, embedded, mosquitto or mqtt://HOST:PORT"
            raise ConfigError("broker", str(error), mend) from error

    @property
    def recipe_sets(self) -> tuple[str, ...]:
        """All overrides of the recipe; later ones win."""
        policy = () if self.policy is None else (f"policy.name={self.policy}",)
        seed = () if self.seed is None else (f"seed={self.seed}",)
        return (*self.sets, *policy, *seed)


def load(text: str | None, environment: Mapping[str, str] = os.environ) -> CoordinatorConfig:
    """Read the configuration; the environment fills in what the text leaves out.

    Args:
        text: A JSON object, the path of a TOML or JSON file, or None.
        environment: Variables, see `ENVIRONMENT`.

    Raises:
        ConfigError: One line with the key and the mend.
    """
    given = {} if text is None else _read(text)
    known = set(CoordinatorConfig.__struct_fields__)
    for variable, value in environment.items():
        key = variable.removeprefix(ENVIRONMENT).lower()
        if variable.startswith(ENVIRONMENT) and key in known and key not in given:
            given[key] = value
    for key in given:
        if key not in known:
            raise ConfigError(str(key)[:64], "is not a setting", f"use one of {sorted(known)}")
    try:
        config = msgspec.convert(given, CoordinatorConfig, strict=False)
    except msgspec.ValidationError as error:
        raise _explained(error) from error
    _check(config)
    return config


def _check(config: CoordinatorConfig) -> None:
    try:
        check_id(config.site)
    except TopicError as error:
        raise ConfigError("site", str(error), "choose another name") from error
    address = config.broker_address
    if address is not None and (address.scheme == "mqtts") != (config.tls is not None):
        raise ConfigError("tls", "does not fit the broker's address", "mqtts:// needs tls")


def _read(text: str) -> dict[str, object]:
    if not text.lstrip().startswith("{"):
        path = Path(text)
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("config", f"{path} cannot be read", "give JSON or a file") from error
        if path.suffix == ".toml":
            try:
                return tomllib.loads(text)
            except tomllib.TOMLDecodeError as error:
                raise ConfigError("config", f"is not TOML: {error}", "mend that line") from error
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except msgspec.DecodeError as error:
        raise ConfigError("config", f"is not a JSON object: {error}", "mend it") from error


def _explained(error: msgspec.ValidationError) -> ConfigError:
    """Turn msgspec's words into key, problem and mend."""
    problem, _, path = str(error).partition(" - at `$.")
    key = path.rstrip("`") or problem.partition("`")[2].partition("`")[0] or "config"
    return ConfigError(key, problem[:1].lower() + problem[1:], "see docs/coordinator.md")
