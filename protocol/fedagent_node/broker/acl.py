"""Who may read and write which topics: one table for every broker (ADR: an identity is a prefix).

Everybody writes below the topic that its certificate names (``a/ID``, ``e/ID``, ``c/ID``) and
reads what is sent there, beacons and models. A broker's owner, and on a shared broker each edge
and coordinator by name, reads what is sent up to it and writes down. The rest is denied.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fedagent_protocol.errors import TopicError
from fedagent_protocol.topics import ROOT, check_id

Action = Literal["read", "write"]
"""``read`` is to be sent the messages of a topic."""

ONE = "?"
"""A level that may be anything but a wildcard: on brokers that cannot tell, ``+``."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern of topics; ``{me}`` is the identity, ``{id}`` its id alone."""

    action: Action
    pattern: str


EVERYBODY = (
    Rule("write", ROOT + "/{site}/{me}/up/#"),
    Rule("write", ROOT + "/{site}/{me}/beacon"),
    Rule("write", ROOT + "/{site}/{me}/model/+"),
    Rule("read", ROOT + "/{site}/{me}/down/#"),
    Rule("read", "fedagent/+/{site}/e/+/beacon"),
    Rule("read", "fedagent/+/{site}/c/+/beacon"),
    Rule("read", ROOT + "/{site}/e/+/model/+"),
)
OF_EDGES = (
    Rule("read", ROOT + "/{site}/a/+/up/{id}/#"),
    Rule("read", ROOT + "/{site}/a/+/up/gone"),
    Rule("write", ROOT + "/{site}/a/+/down/{id}/+"),
)
OF_COORDINATORS = (
    Rule("read", ROOT + "/{site}/e/+/up/#"),
    Rule("write", ROOT + "/{site}/e/+/down/+"),
)
UNKNOWN = (
    *(Rule("write", f"{ROOT}/{{site}}/{letter}/{ONE}/up/#") for letter in "ae"),
    *(Rule("read", f"{ROOT}/{{site}}/{letter}/{ONE}/down/#") for letter in "ae"),
    *(rule for rule in EVERYBODY if rule.action == "read" and "{me}" not in rule.pattern),
)
"""Without certificates nobody but the owner can be told from anybody else."""

_NAMED = {"e": OF_EDGES, "c": OF_COORDINATORS}


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
                raise TopicError(f"neither an edge nor a coordinator: {name!r}")

    def rules(self, name: str) -> Iterator[Rule]:
        """Return what a name may do, of patterns without placeholders; ``""`` is nobody known."""
        if not name:
            yield from (self._filled(rule, "", "") for rule in UNKNOWN)
            return
        letter, ident = split_name(name)
        if ident in self.revoked:
            return
        more = _NAMED[letter] if name in self.named else ()
        yield from (self._filled(rule, name, ident) for rule in (*EVERYBODY, *more))

    def allows(self, name: str, action: Action, topic: str) -> bool:
        """Return whether a name may write to a topic, or read all of a topic filter."""
        try:
            rules = tuple(self.rules(name))
        except TopicError:
            return False
        return any(one.action == action and covers(one.pattern, topic) for one in rules)

    def _filled(self, rule: Rule, me: str, ident: str) -> Rule:
        pattern = rule.pattern.replace("{site}", self.site)
        return Rule(rule.action, pattern.replace("{me}", me).replace("{id}", ident))

    def mosquitto(self, *, certificates: bool = True) -> str:
        """Return the text of an ``acl_file``; without certificates the owner has a password."""
        lines = []
        if certificates:
            filled = (self._filled(rule, "%u", "") for rule in EVERYBODY)
            lines += [f"pattern {one.action} {one.pattern}" for one in filled]
        else:
            plain = (self._filled(rule, "", "") for rule in UNKNOWN)
            lines += [f"topic {one.action} {one.pattern.replace(ONE, '+')}" for one in plain]
        for name in self._out():
            lines += [f"user {name}", "topic deny #"]
        for name in self._serving():
            more = _NAMED[name[0]] if certificates else (*EVERYBODY, *_NAMED[name[0]])
            filled = (self._filled(rule, name, name[2:]) for rule in more)
            lines += [f"user {name}", *(f"topic {one.action} {one.pattern}" for one in filled)]
        return "\n".join(lines) + "\n"

    def _out(self) -> list[str]:
        return [f"{letter}/{ident}" for ident in sorted(self.revoked) for letter in "ae"]

    def _serving(self) -> list[str]:
        return [name for name in self.named if split_name(name)[1] not in self.revoked]


def split_name(name: str) -> tuple[str, str]:
    """Return letter and id of an identity such as ``a/ID``; raises `TopicError`."""
    letter, slash, ident = name.partition("/")
    if letter not in ("a", "e", "c") or not slash:
        raise TopicError(f"not an identity: {name[:80]!r}")
    return letter, check_id(ident)


def covers(pattern: str, topic: str) -> bool:
    """Return whether every topic that the filter `topic` stands for is one of `pattern`."""
    wanted, given = pattern.split("/"), topic.split("/")
    for i, level in enumerate(wanted):
        if level == "#":
            return len(given) >= i
        if i >= len(given) or given[i] == "#":
            return False
        if level == ONE:
            if given[i] == "+":
                return False
        elif level not in ("+", given[i]):
            return False
    return len(wanted) == len(given)
