"""The base of all our errors, and the errors of the wire and of things found by name."""

import codecs
import errno
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from string import Formatter
from typing import Any, dataclass_transform

MICRO = 1_000_000
"""Micro-credits of a credit."""
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}


class _Sentence(Formatter):
    """Fills a template with attributes of an error; a collection becomes its items."""

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG002 - the interface's
        return getattr(args[0], str(key))

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, str) or not isinstance(value, Collection):
            return str(format(value, format_spec))
        most = int(format_spec) if format_spec else None
        return ", ".join(map(str, islice(value, most))) or "none"


_SENTENCE = _Sentence()


@dataclass_transform(eq_default=False)
class FedagentError(Exception):
    """Base of every error of ours: a sentence about its data, and what to do about it.

    A subclass declares the data as annotations, and the sentence as a template of them::

        class UnknownRunError(StoreError):
            template = "there is no run {run_id!r}"
            hint = "`fedagent status --all` lists them"

            run_id: str

    The data are the constructor's arguments, in this order. In a template a collection
    becomes its items (``{names:10}``: the first ten) or ``none``; properties can be named
    too. `hint` may be data as well. A class without data takes the sentence and the hint.
    """

    template = "{problem}"
    hint = ""

    def __init__(self, problem: str = "", hint: str = "") -> None:
        super().__init__(problem, hint)
        self.problem, self.hint = problem, hint or self.hint

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__annotations__" in vars(cls):
            dataclass(eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        self.args = tuple(vars(self).values())

    def __str__(self) -> str:
        return f"{self.sentence}; {self.hint}" if self.hint else self.sentence

    @property
    def sentence(self) -> str:
        """What is wrong, without the hint."""
        return _SENTENCE.vformat(self.template, (self,), {})


class ProtocolError(FedagentError):
    """Raised for foreign bytes that cannot be used; `reason`: what counters and logs call it."""

    template = "{detail}"

    detail: str
    reason: str = "malformed"


class DigestError(ProtocolError):
    """Raised when content is not there, or does not hash to the digest it was announced by."""

    reason: str = "digest_mismatch"


class RegistryError(FedagentError):
    """Base of errors of things that are found by name."""


class UnknownNameError(RegistryError):
    """Raised when nothing of this kind has the name."""

    template = "no {kind} is named {name!r}; there are: {known}"

    kind: str
    name: str
    known: Collection[str]


class ParameterError(RegistryError):
    """Raised when a parameter is unknown, of a wrong type or out of its range."""

    template = "{name}: parameter {parameter!r} {problem}"

    name: str
    parameter: str
    problem: str


class PluginError(RegistryError):
    """Raised when a policy, solver or placement of someone else's is broken."""

    template = "{kind} {name!r} ({source}) {problem}"
    hint = "fix its package or uninstall it"

    kind: str
    name: str
    source: str  # module:attribute of the entry point
    problem: str


def too_large(what: str, size: int, limit: int) -> ProtocolError:
    """Return the error for what is over its limit, before anything is made of it."""
    return ProtocolError(f"{what} is {size}, the limit is {limit}", "oversize")


def safe_text(text: object, *, limit: int = 200) -> str:
    """Return foreign text on one line, printable and at most `limit` characters."""
    line = "".join(c if c.isprintable() else " " for c in str(text)[: 4 * limit])
    line = " ".join(line.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def credits_text(micro: float) -> str:
    """Return micro-credits as credits, without trailing zeros: ``1_500_000`` is ``1.5``."""
    whole, rest = divmod(abs(round(micro)), MICRO)
    text = f"{whole:,}" + (f".{rest:06d}".rstrip("0") if rest else "")
    return f"-{text}" if micro < 0 else text


def text_of(data: bytes) -> str:
    """Return a file's or a message's text, without the mark that Windows tools begin it with.

    Raises:
        UnicodeError: It is neither UTF-8 nor, by its mark, UTF-16.
    """
    utf_16 = data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return data.decode("utf-16" if utf_16 else "utf-8-sig")


_SECRET = re.compile(r"(mqtts?://[^\s:/@]*):.*@", re.DOTALL)


def hide_password(text: str) -> str:
    """Return text without the password of the address in it; rather too much is hidden."""
    return _SECRET.sub(r"\1:***@", text)


def is_disk_error(error: OSError) -> bool:
    """Return whether a full or broken disk is behind it, and not a file or a network."""
    return error.errno in _DISK
