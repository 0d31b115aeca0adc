"""Options follow from the fields of a struct."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from fedagent_protocol.option import Option, declared


class Table(Struct, frozen=True):
    share: Annotated[float, Meta(ge=0, le=1), Option("A share.")] = 0.5
    kind: Annotated[Literal["a", "b"], Option("A kind.", panel="Kinds")] = "a"


class Config(Struct, frozen=True):
    names: Annotated[tuple[str, ...], Meta(max_length=3), Option("Names.", name="--name")] = ()
    table: Annotated[Table, Option("A table.", panel="Shares")] = Table()
    limit: Annotated[Annotated[int, Meta(ge=1)] | None, Option("A limit.", default="none")] = None
    place_km: Annotated[str, Option("A place.")] = ""
    hidden: int = 0


def test_every_field_with_an_option_is_one() -> None:
    found = {one.parameter: one for one in declared(Config)}
    assert list(found) == ["names", "table_share", "table_kind", "limit", "place_km"]
    names, share = found["names"], found["table_share"]
    assert (names.name, names.many, names.kind, names.shown_default) == ("--name", True, str, "")
    assert (share.name, share.keys, share.panel) == ("--share", ("table", "share"), "Shares")
    assert (share.shown_default, share.limits) == ("0.5", Meta(ge=0, le=1))
    assert (found["table_kind"].panel, found["table_kind"].kind) == ("Kinds", Literal["a", "b"])
    assert (found["limit"].kind, found["limit"].limits) == (int, Meta(ge=1))
    assert (found["limit"].shown_default, found["limit"].panel) == ("none", "Options")
    assert found["place_km"].name == "--place-km"
