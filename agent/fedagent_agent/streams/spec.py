"""A stream as text, ``KIND:PATH,option=value,…``: the struct of a kind declares its options.

Nothing of this imports numpy: an agent reads what a stream is, and its trainer opens it.
"""

import difflib
from pkgutil import resolve_name
from typing import (
    TYPE_CHECKING,
    Annotated,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    get_args,
    get_origin,
)

import msgspec
from msgspec import Meta, Struct

from fedagent_protocol.errors import FedagentError
from fedagent_protocol.option import Declared, Option, declared
from fedagent_protocol.registry import Registry
from fedagent_task.recipe.spec import DataSpec

if TYPE_CHECKING:
    from .base import Stream

EXAMPLES = "digits:labels=3+7,rate=20, csv:PATH,label=last or mqtt://HOST:PORT/TOPIC?features=a,b"
Buffer = Annotated[
    int,
    Meta(ge=1, le=10**6),
    Option("Most samples kept between two reads; the newest are kept.", example="4096"),
]


S = TypeVar("S", bound="StreamSpec")


class StreamError(FedagentError):
    """Raised when text describes no stream, or one that cannot be read; `key` is what is wrong.

    A device that declines sends what it is as text. Where a file lies is nobody else's
    business: `path` is no part of that, only of `reason_here`.
    """

    template = "{key}: {reason}"

    key: str
    reason: str
    hint: str
    path: str = ""

    @property
    def reason_here(self) -> str:
        """The reason as the machine's own user may read it, with the file."""
        return f"{self.path}: {self.reason}" if self.path else self.reason


class StreamSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of stream: its fields with an `Option` are options, `path` stands before them."""

    form: ClassVar[str]  # how it begins, for people
    stream: ClassVar[str]  # ``module:class`` in this package, made of the struct

    @classmethod
    def read(cls, kind: str, text: str) -> Self:
        """Return the stream that the text behind ``KIND:`` describes; see `parse_stream`."""
        given: dict[str, str] = {}
        if "path" in cls.__struct_fields__:
            path, _, text = text.partition(",")
            if not path.strip():
                raise StreamError(kind, "has no value", f"write {EXAMPLES}")
            given["path"] = path.strip()
        return made(cls, options_of(cls, text), **given)

    def check(self) -> None:
        """Raise `StreamError` for what lies beside the text, such as a password."""

    @property
    def opened_at_start(self) -> bool:
        """Whether an agent tries it before its first round: a file may be missing."""
        return "path" in self.__struct_fields__

    def create(
        self, *, seed: int, offset: int = 0, mark: str = "", data: DataSpec | None = None
    ) -> "Stream":
        """Return the stream, not yet open; it goes on at the offset and mark that it had before.

        `data` has the names of features and classes, for streams that carry names.
        """
        kind = resolve_name(f"{__package__}.{self.stream}")
        made: Stream = kind(self, seed=seed, offset=offset, mark=mark, data=data or DataSpec())
        return made


registry: Registry[StreamSpec] = Registry(
    kind="stream",
    package=__package__,
    builtin={
        "digits": "kinds:Digits",
        "replay": "kinds:Replay",
        "csv": "kinds:Csv",
        "mqtt": "kinds:Mqtt",
        "mqtts": "kinds:Mqtt",
    },
    group="fedagent.streams",
)


def options_of(kind: type[StreamSpec], text: str) -> dict[str, str]:
    """Return ``name=value`` pairs between commas, all of known names."""
    known = [one.keys[0] for one in declared(kind)]
    options: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        name = name.strip()
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise StreamError(name[:40] or "stream", "is not an option of this stream", hint)
        if not equals or not value.strip():
            raise StreamError(name, "has no value", f"write {name}=...")
        options[name] = value.strip()
    return options


def no_kind(kind: str) -> StreamError:
    """Return the error of a text that begins with no kind of stream."""
    return StreamError("stream", f"{kind[:40]!r} is not a kind of stream", f"write {EXAMPLES}")


def made(kind: type[S], options: dict[str, str], **more: object) -> S:
    """Return the struct of options as text, and of values."""
    fields = {one.keys[0]: one for one in declared(kind)}
    for name, field in fields.items():
        if field.required and name not in options:
            raise StreamError(name, "is missing", f"write {name}={field.option.example}")
    values = {name: _parts(fields[name], text) for name, text in options.items()}
    try:
        return msgspec.convert({**values, **more}, kind, strict=False)
    except msgspec.ValidationError as error:
        key, bracket, index = str(error).partition(" - at `$.")[2].rstrip("`").partition("[")
        each = bracket and fields[key].many
        wrong = values[key][int(index.rstrip("]"))] if each else options[key]
        raise _refused(fields[key], wrong) from error


def _parts(field: Declared, text: str) -> str | list[str]:
    if get_origin(field.kind) is tuple:
        return text.split("/")
    if not field.many:
        return text
    return [item.strip() for item in text.split("+") if item.strip() or field.kind is int]


def _refused(field: Declared, wrong: str) -> StreamError:
    key, example = field.keys[0], field.option.example
    if not example and get_origin(field.kind) is Literal:
        example = f"one of {', '.join(get_args(field.kind))}"
    return StreamError(key, f"{wrong[:40]!r} is no {key}", f"write {key}={example}")
