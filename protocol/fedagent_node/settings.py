"""Reading a role's settings: JSON, TOML or environment into a frozen struct, checked once.

Every error is one line that names the key and the hint.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self, get_args, get_origin

import msgspec
from msgspec import Meta, Struct, structs

from fedagent_node.site import CERT_FILE, FOLDER
from fedagent_node.site.joining import (
    MAX_INVITATION_CHARS,
    SCHEME,
    Invitation,
    JoinRole,
    split_place,
)
from fedagent_protocol.errors import ProtocolError, safe_text, text_of
from fedagent_protocol.extras import how_to_add
from fedagent_protocol.option import Declared, Option, declared
from fedagent_protocol.topics import check_id

from .address import BrokerAddress, TlsFiles, is_loopback
from .errors import JoinError
from .errors import SettingError as SettingError  # noqa: PLC0414 - offered here too
from .network import ip_of

PASSWORD_VARIABLE = "FEDAGENT_MQTT_PASSWORD"  # noqa: S105 - its name, not its value
LINK = "Link"
"""Panel of the options of links."""
PRIVATE_BROKERS = ("auto", "embedded", "mosquitto")
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
Scope = Literal["lan", "loopback", "off"]
Name = Annotated[
    str, Meta(max_length=100), Option("Human-readable name; it also names the data directory.")
]
JoinText = Annotated[
    str,
    Meta(max_length=MAX_INVITATION_CHARS),
    Option(
        "Join the site: the invitation that `fedagent devices invite` printed, or HOST:PORT of "
        "a join service.",
        metavar="STRING",
        panel=LINK,
    ),
]
Seed = Annotated[Annotated[int, Meta(ge=0, lt=2**53)] | None, Option("Seed of all random numbers.")]


class TlsSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """PEM files of the authority, our certificate and our key."""

    ca: Annotated[str, Option("Certificate authority, PEM.", name="--tls-ca", path=True)]
    cert: Annotated[str, Option("Own certificate, PEM.", name="--tls-cert", path=True)]
    key: Annotated[str, Option("Own private key, PEM.", name="--tls-key", path=True)]

    def files(self) -> TlsFiles:
        """Return the paths."""
        return TlsFiles(Path(self.ca), Path(self.cert), Path(self.key))


class NodeConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that all roles have."""

    prefix: ClassVar[str]  # of environment variables: ``PREFIX_SITE`` sets ``site``
    discovery: Annotated[
        Scope,
        Option("Find peers by zeroconf: lan (all networks), loopback only, or off.", panel=LINK),
    ] = "lan"
    insecure: Annotated[
        bool, Option("Allow unencrypted MQTT beyond loopback. Logged at every start.", panel=LINK)
    ] = False
    password_file: Annotated[
        str | None,
        Option(
            "Password of a broker whose address names a user (mqtt://USER@HOST).",
            default=f"${PASSWORD_VARIABLE}",
            panel=LINK,
            path=True,
        ),
    ] = None
    tls: Annotated[TlsSettings | None, Option("Certificates.", panel=LINK)] = None
    site: Annotated[
        str, Option("Name of the site; only members of the same site see each other.")
    ] = "default"
    data_dir: Annotated[
        str,
        Option(
            "Data directory: identity, outbox, database.",
            default="by role and name below $FEDAGENT_HOME",
            panel="Where",
            path=True,
        ),
    ]
    log_level: Annotated[LogLevel, Option("debug, info, warning or error.")] = "info"
    log_format: Annotated[LogFormat, Option("Log lines as text, or as one JSON object each.")] = (
        "text"
    )
    metrics: Annotated[
        str,
        Option("Serve metrics for Prometheus at this address.", metavar="[HOST:]PORT", panel=LINK),
    ] = ""
    json_events: bool = False  # one JSON object per line on stdout
    watch_parent: bool = False  # end when stdin ends

    @classmethod
    def load(cls, text: str | None, environment: Mapping[str, str] = os.environ) -> Self:
        """Return settings from a JSON object, or the path of a TOML or JSON file.

        The environment fills in what it leaves out.

        Raises:
            SettingError: One line with the key and the hint.
        """
        given = {} if text is None else read_settings(text)
        prefix = cls.prefix
        known = cls.__struct_fields__
        for variable, value in environment.items():
            key = variable.removeprefix(prefix).lower()
            if variable.startswith(prefix) and key in known and key not in given:
                given[key] = value
        for key in given:
            if key not in known:
                near = get_close_matches(key, known, 1)
                others = f"use one of {', '.join(sorted(known))}"
                hint = f"did you mean {near[0]}?" if near else others
                raise SettingError(str(key)[:64], "is not a setting", hint)
        try:
            made = msgspec.convert(given, cls, strict=False)
        except msgspec.ValidationError as error:
            problem, _, path = str(error).partition(" - at `$.")
            key = path.rstrip("`") or problem.partition("`")[2].partition("`")[0] or "config"
            problem = problem[:1].lower() + problem[1:]
            raise SettingError(key, problem, _wanted(cls, key)) from error
        return made.checked()

    def checked(self) -> Self:
        """Return the settings; raise `SettingError` for what types and ranges let pass."""
        try:
            check_id(self.site)
        except ProtocolError as error:
            raise SettingError("site", error.detail, "choose another name") from error
        self.metrics_place()
        return self

    def metrics_place(self) -> tuple[str, int] | None:
        """Return where metrics are served; None for nowhere. They are no secret, and plain HTTP.

        Raises:
            SettingError: It is no address, or what it needs is not there.
        """
        if not self.metrics:
            return None
        given = self.metrics if ":" in self.metrics else f"127.0.0.1:{self.metrics}"
        try:
            host, port = split_place(given)
        except JoinError as error:
            form = "write PORT or HOST:PORT, e.g. 9100 or 10.0.0.2:9100"
            raise SettingError("metrics", "is not an address", form) from error
        if not (is_loopback(host) or self.insecure):
            hint = "serve them on loopback behind a proxy or a tunnel, or add --insecure"
            raise SettingError(
                "metrics", f"{given} would serve metrics in plain text to other machines", hint
            )
        if find_spec("prometheus_client") is None:
            raise SettingError("metrics", "needs prometheus_client", how_to_add("metrics"))
        return host, port

    def address(self, key: str, text: str) -> BrokerAddress:
        """Return the broker address that a setting names, with the password where it has a user.

        Raises:
            SettingError: It cannot be read, does not fit the certificates, would be spoken to in
                the clear beyond this machine without `insecure`, or its password is nowhere.
        """
        try:
            address = BrokerAddress.parse(text)
        except ValueError as error:
            # With an @ or a colon in it, it may be a password that is shown.
            shown = "" if {"@", ":"} & set(text) else f"{safe_text(text, limit=80)!r} "
            kinds = ", or auto, embedded, mosquitto" if key == "broker" else ""
            forms = _ENCODED if "@" in text else f"{_FORMS}{kinds}"
            raise SettingError(
                key, f"{shown}is not a broker's address", f"write {forms}"
            ) from error
        if self.enrolled and "://" not in text and not (is_loopback(address.host) or self.insecure):
            address = replace(address, scheme="mqtts")
        covered = self.tls is not None or (self.enrolled and address.scheme == "mqtts")
        if covered != (address.scheme == "mqtts"):
            hint = "mqtts:// needs --join or tls = {ca, cert, key}, mqtt:// takes none"
            raise SettingError(key, f"{address} does not match the certificate settings", hint)
        address.check_cover(insecure=self.insecure, key=key)
        return with_password(key, address, self.password_file)

    @property
    def enrolled(self) -> bool:
        """Whether this role joined a site, and uses what it was given there."""
        joins = self.invitation() is not None
        return self.tls is None and (joins or (Path(self.data_dir) / FOLDER / CERT_FILE).is_file())

    def invitation(self) -> Invitation | str | None:
        """Return what `join` says: an invitation, or HOST:PORT; None where it says nothing.

        Raises:
            SettingError: It is neither.
        """
        text: str = getattr(self, "join", "").strip()
        if not text:
            return None
        try:
            if text.startswith(SCHEME):
                return Invitation.parse(text)
            split_place(text)
        except JoinError as error:
            raise SettingError("join", error.words, error.hint) from error
        return text

    def check_invitation(self, role: JoinRole) -> None:
        """Raise `SettingError` for an invitation to another site, or as another role."""
        given = self.invitation()
        if given is not None and self.tls is not None:
            problem = "cannot be combined with certificate files"
            raise SettingError("join", problem, "leave out one of them")
        if not isinstance(given, Invitation):
            return
        if given.site != self.site:
            shown = safe_text(given.site)
            raise SettingError("join", f"is for site {shown!r}", f"add --site {shown}")
        if given.role != role:
            hint = f"invite it again: `fedagent devices invite NAME --role {role}`"
            raise SettingError("join", f"is for an {given.role}, but this is an {role}", hint)


class BrokerConfig(NodeConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a role that may run a broker."""

    broker: Annotated[
        str,
        Option("Own broker (auto, mosquitto, embedded), or the URL of a running one.", panel=LINK),
    ] = "auto"
    listen: Annotated[
        str,
        Option(
            "Address that the own broker listens on. Beyond loopback it uses TLS and admits "
            "only members of the site, unless --insecure.",
            panel=LINK,
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        Meta(ge=0, le=65535),
        Option("Port of the own broker; 0 takes a free one.", default="", panel=LINK),
    ] = 0
    """0 takes the last one, or a free one."""
    secure: Annotated[
        bool, Option("Use TLS with the site's certificates on loopback too.", panel=LINK)
    ] = False

    @property
    def covered(self) -> bool:
        """Whether the own broker listens with TLS of the site: beyond loopback it does."""
        beyond = not (is_loopback(self.listen) or self.insecure)
        return self.tls is None and self.broker in PRIVATE_BROKERS and (beyond or self.secure)

    def checked(self) -> Self:
        """Return the settings; an IPv6 address to listen on may have brackets, as in a URL."""
        super().checked()
        self.shared()
        bracketed = self.listen.startswith("[") and self.listen.endswith("]")
        host = self.listen[1:-1] if bracketed else self.listen
        found = ip_of(host)
        if found is None and host != "localhost":
            hint = "write an address without a port, e.g. 127.0.0.1, ::1 or 0.0.0.0"
            raise SettingError("listen", f"not an address: {self.listen[:80]!r}", hint)
        return structs.replace(self, listen=str(found or host))

    def shared(self) -> BrokerAddress | None:
        """Return the address of a shared broker, or None for a private one; see `address`."""
        return None if self.broker in PRIVATE_BROKERS else self.address("broker", self.broker)


def options_of(kind: type[NodeConfig]) -> list[Declared]:
    """Return the options of a role: its own first, then those that all roles have."""
    own = [one for one in declared(kind) if one.keys[0] not in NodeConfig.__struct_fields__]
    return [*own, *declared(NodeConfig)]


def with_password(
    key: str,
    address: BrokerAddress,
    file: str | None,
    environment: Mapping[str, str] = os.environ,
) -> BrokerAddress:
    """Return the address with the password of its user: its own, a file's, the environment's.

    Raises:
        SettingError: The file cannot be read or is empty, or there is no password at all.
    """
    if not address.user or address.password is not None:
        return address
    password = environment.get(PASSWORD_VARIABLE)
    if file is not None:
        hint = "give a file that contains only the password"
        try:
            password = text_of(Path(file).expanduser().read_bytes()).rstrip("\r\n")
        except (OSError, UnicodeError) as error:
            raise SettingError("password_file", f"{file} cannot be read", hint) from error
        if not password:
            raise SettingError("password_file", f"{file} is empty", hint)
    if password is None:
        hint = f"name a password_file, set {PASSWORD_VARIABLE}, or write USER:PASSWORD@HOST"
        raise SettingError(key, f"names a user at {address} but no password", hint)
    return replace(address, password=password)


_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text in quotes"}


def _wanted(kind: type[NodeConfig], key: str) -> str:
    """Return a hint that says what a setting may be."""
    path = tuple(key.partition("[")[0].split("."))
    one = next((one for one in declared(kind) if one.keys == path), None)
    if one is None:
        keys = ", ".join(one.keys[-1] for one in declared(kind) if one.keys[:-1] == path)
        return f"it is a table of {keys}" if keys else "see docs/settings.md"
    words = [str(word) for word in get_args(one.kind) if get_origin(one.kind) is Literal]
    if words:
        return f"write {', '.join(words[:-1])} or {words[-1]}"
    what = one.option.example or _KINDS[one.kind]
    return f"write {f'a list, each {what}' if one.many else what}: {one.option.help}"


_ENCODED = "mqtt://USER:PASSWORD@HOST, with %40 for @, %3A for : and %2F for /"
_FORMS = "HOST:PORT (a role's log says its port), mqtt://HOST:PORT or mqtts://HOST:PORT"


def read_settings(text: str) -> dict[str, object]:
    """Return the keys of a JSON object, or of the TOML or JSON file of that path.

    Raises:
        SettingError: It cannot be read, or is neither.
    """
    name = ""
    if not text.lstrip().startswith("{"):
        name = f"{text} "
        try:
            text = text_of(Path(text).read_bytes())
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            problem = f"cannot read {name}({why})"
            raise SettingError("config", problem, "give JSON or a file") from error
    try:
        if text.lstrip().startswith("{"):
            return msgspec.json.decode(text, type=dict[str, object])
        return tomllib.loads(text)
    except (msgspec.DecodeError, tomllib.TOMLDecodeError) as error:
        if "surrogate" in str(error):  # as the system gives what it cannot read
            raise SettingError("config", "has a path that is not UTF-8", "rename it") from error
        problem = f"{name}is neither TOML nor a JSON object: {error}"
        hint = 'write KEY = VALUE lines, or {"KEY": VALUE}'
        raise SettingError("config", problem, hint) from error
