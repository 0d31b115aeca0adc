"""One option, declared once: a field of a frozen struct.

Files, the environment, the command line, `--help` and the tables of the documents follow from it.

::

    port: Annotated[int, Meta(ge=0, le=65535), Option("Port of the own broker.", panel=LINK)] = 0

Type, range and default are the field's; a table in a struct is a struct again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Meta, Struct, structs


@dataclass(frozen=True, slots=True)
class Option:
    """What people see of a field."""

    help: str
    name: str = ""  # on the command line, where it is not the key's
    metavar: str | None = None
    default: str | None = None  # shown for the default, where it is not the field's own
    example: str = ""
    panel: str = ""  # heading in `--help`; of a table, of all options in it
    path: bool = False
    at_least: int | None = None  # lower bound on the command line alone


@dataclass(frozen=True, slots=True)
class Declared:
    """A field with an `Option`."""

    keys: tuple[str, ...]  # of the tables that it is in, and its own
    kind: Any  # its type, without None; of a list (`many`), that of its items
    many: bool
    option: Option
    limits: Meta | None
    required: bool
    default: object  # of the field; None where it is required
    panel: str

    @property
    def name(self) -> str:
        """The option on the command line."""
        return self.option.name or f"--{self.keys[-1].replace('_', '-')}"

    @property
    def parameter(self) -> str:
        """What its value is called among those of all options."""
        return "_".join(self.keys)

    @property
    def shown_default(self) -> str:
        """Its default for people; empty where there is nothing to show."""
        if self.option.default is not None:
            return self.option.default
        if self.kind is bool or self.many or self.default is None:
            return ""
        return str(self.default).removesuffix(".0")


def declared(kind: type[Struct], *tables: str, panel: str = "Options") -> Iterator[Declared]:
    """Yield the options of a struct in the order of its fields, and those of the structs in it."""
    hints = get_type_hints(kind, include_extras=True)
    for field in structs.fields(kind):
        plain, limits, option, many = _read(hints[field.name])
        keys = (*tables, field.name)
        heading = option.panel if option is not None and option.panel else panel
        if isinstance(plain, type) and issubclass(plain, Struct):
            yield from declared(plain, *keys, panel=heading)
        elif option is not None:
            required = field.default is NODEFAULT
            default = None if required else field.default
            yield Declared(keys, plain, many, option, limits, required, default, heading)


def _read(hint: Any) -> tuple[Any, Meta | None, Option | None, bool]:
    """Return the plain type, the range, the option, and whether it is a list."""
    limits, option, many = None, None, False
    while True:
        if get_origin(hint) is Annotated:
            hint, *notes = get_args(hint)
            limits = next((one for one in notes if isinstance(one, Meta)), limits)
            option = next((one for one in notes if isinstance(one, Option)), option)
        elif get_origin(hint) in (Union, UnionType):
            (hint,) = (one for one in get_args(hint) if one is not NoneType)
        elif get_origin(hint) is tuple and get_args(hint)[1:] == (...,):
            hint, many = get_args(hint)[0], True
        else:
            return hint, limits, option, many
