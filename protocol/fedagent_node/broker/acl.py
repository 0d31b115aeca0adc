"""What a private broker is, and who may read and write which topics: one table for every broker.

Everybody writes below the topic that its certificate names (``a/ID``, ``e/ID``, ``c/ID``) and
reads what is sent there, and beacons. A broker's owner, and on a shared broker each edge
and coordinator by name, reads what is sent up to it and writes down. The rest is denied.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from fedagent_node.address import TlsFiles
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.topics import ROOT, check_id

Action = Literal["read", "write"]
"""``read`` is to be sent the messages of a topic."""
Rule = tuple[Action, str]
"""An action and a pattern of topics; ``{me}`` is the identity, ``{id}`` its id alone."""

EVERYBODY: tuple[Rule, ...] = (
    ("write", ROOT + "/{site}/{me}/up/#"),
    ("write", ROOT + "/{site}/{me}/beacon"),
    ("read", ROOT + "/{site}/{me}/down/#"),
    ("read", "fedagent/+/{site}/e/+/beacon"),
    ("read", "fedagent/+/{site}/c/+/beacon"),
)
_NAMED: dict[str, tuple[Rule, ...]] = {
    "e": (
        ("read", ROOT + "/{site}/a/+/up/{id}/#"),
        ("read", ROOT + "/{site}/a/+/up/+"),
        ("write", ROOT + "/{site}/a/+/down/{id}/+"),
    ),
    "c": (
        ("read", ROOT + "/{site}/e/+/up/#"),
        ("write", ROOT + "/{site}/e/+/down/+"),
    ),
}
"""What edges and coordinators may do beside that, where they are named."""


@dataclass(frozen=True, slots=True)
class AccessList:
    """The table of one broker; `named` are the edges and coordinators that it serves (``e/ID``).

    Whose ids were `revoked` may do nothing: TLS keeps out only the certificates that are on a list.
    """

    site: str
    named: tuple[str, ...] = ()
    revoked: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Refuse what is no id: the lists are text files."""
        check_id(self.site)
        for ident in self.revoked:
            check_id(ident)
        for name in self.named:
            if split_name(name)[0] not in _NAMED:
                raise ProtocolError(f"neither an edge nor a coordinator: {name!r}", "topic")

    def rules(self, name: str) -> Iterator[Rule]:
        """Return what a name may do, of patterns without placeholders."""
        letter, ident = split_name(name)
        if ident in self.revoked:
            return
        yield from self._filled(EVERYBODY, name)
        if name in self.named:
            yield from self._filled(_NAMED[letter], name)

    def allows(self, name: str, action: Action, topic: str) -> bool:
        """Return whether a name may write to a topic, or read all of a topic filter."""
        try:
            rules = tuple(self.rules(name))
        except ProtocolError:
            return False
        return any(verb == action and covers(pattern, topic) for verb, pattern in rules)

    def _filled(self, rules: tuple[Rule, ...], me: str) -> Iterator[Rule]:
        for action, pattern in rules:
            filled = pattern.replace("{site}", self.site).replace("{me}", me)
            yield action, filled.replace("{id}", me[2:])

    def mosquitto(self) -> str:
        """Return the text of an ``acl_file``."""
        rules = self._filled(EVERYBODY, "%u")
        lines = [f"pattern {action} {pattern}" for action, pattern in rules]
        for ident in sorted(self.revoked):
            for letter in "ae":
                lines += [f"user {letter}/{ident}", "topic deny #"]
        for name in self.named:
            letter, ident = split_name(name)
            if ident not in self.revoked:
                rules = self._filled(_NAMED[letter], name)
                lines += [f"user {name}", *(f"topic {verb} {pattern}" for verb, pattern in rules)]
        return "\n".join(lines) + "\n"


class BrokerSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A private broker; beyond loopback it needs TLS or `insecure`.

    With certificates of the site (`certified`), which name identities, only what `access` allows is
    done; without them anybody may do anything.
    """

    data_dir: Path  # for the port, the configuration and the log
    kind: Literal["auto", "mosquitto", "embedded"] = "auto"
    listen: str = "127.0.0.1"
    port: int = 0  # the one used last, else a free one
    tls: TlsFiles | None = None
    certified: bool = False  # whether `tls` is of a site
    owner: str = ""  # ``e/ID`` or ``c/ID``
    site: str = ""  # the owner's
    revoked: frozenset[str] = frozenset()  # ids that may do nothing, whatever certificate they show
    insecure: bool = False
    max_packet_bytes: int = 1 << 20  # larger packets end the connection they come from
    name: str = "broker"

    @property
    def access(self) -> AccessList | None:
        """Who may do what; None is everybody everything."""
        return AccessList(self.site, (self.owner,), self.revoked) if self.certified else None


def split_name(name: str) -> tuple[str, str]:
    """Return letter and id of an identity such as ``a/ID``; raises `ProtocolError`."""
    letter, slash, ident = name.partition("/")
    if letter not in ("a", "e", "c") or not slash:
        raise ProtocolError(f"not an identity: {name[:80]!r}", "topic")
    return letter, check_id(ident)


def covers(pattern: str, topic: str) -> bool:
    """Return whether every topic that the filter `topic` stands for is one of `pattern`."""
    wanted, given = pattern.split("/"), topic.split("/")
    for i, level in enumerate(wanted):
        if level == "#":
            return len(given) >= i
        if i >= len(given) or given[i] == "#" or level not in ("+", given[i]):
            return False
    return len(wanted) == len(given)
