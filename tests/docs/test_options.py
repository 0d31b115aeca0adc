"""The tables of options in the documents are those of the code: of roles, and of kinds of streams.

``python -m tests.docs.test_options`` draws them anew.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest

from fedagent_agent.config import AgentConfig
from fedagent_agent.streams import registry
from fedagent_agent.streams.spec import StreamSpec
from fedagent_coordinator.config import CoordinatorConfig
from fedagent_edge.config import EdgeConfig
from fedagent_node.settings import NodeConfig, options_of
from fedagent_protocol.option import Declared, declared

DOCS = Path(__file__).parents[2] / "docs"
ROLES: dict[str, type[NodeConfig]] = {
    "agent": AgentConfig,
    "edge": EdgeConfig,
    "coordinator": CoordinatorConfig,
}


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def typed(one: Declared) -> str:
    """Return an option with what stands for its value."""
    plain = {int: "N", float: "NUMBER"}.get(one.kind, "PATH" if one.option.path else "TEXT")
    if get_origin(one.kind) is Literal:
        plain = "|".join(get_args(one.kind))
    value = "" if one.kind is bool else f" {one.option.metavar or plain}"
    return f"`{one.name}{value}`"


def bounds(one: Declared) -> str:
    """Return the range of a number, with spaces between thousands."""
    limits = one.limits
    if limits is None or limits.ge is None:
        return ""
    high = limits.le if limits.lt is None else limits.lt - 1
    assert high is not None
    return " … ".join(f"{int(end):,}".replace(",", " ") for end in (limits.ge, high))


def table_of(options: list[Declared]) -> str:
    rows = [row("option", "key", "range", "default", ""), row(*["---"] * 5)]
    for one in options:
        key = f"`{'.'.join(one.keys)}`"
        rows.append(row(typed(one), key, bounds(one), one.shown_default, one.option.help))
    return "\n".join(rows)


def role_table(role: str) -> str:
    shared = len(list(declared(NodeConfig)))
    return table_of(options_of(ROLES[role])[:-shared])


def stream_table() -> str:
    """Return a row for each kind, and one for each option that no kind above has."""
    rows = [row("text", ""), row("---", "---")]
    seen: set[tuple[str, str]] = set()
    for kind in dict.fromkeys(map(registry.factory, registry.builtin)):
        assert isinstance(kind, type)
        assert issubclass(kind, StreamSpec)
        own = {
            (f"`{one.keys[0]}={one.option.example or one.shown_default}`", one.option.help): one
            for one in declared(kind)
        }
        also = [f"`{one.keys[0]}`" for line, one in own.items() if line in seen]
        about = " ".join((kind.__doc__ or "").split())
        about += f" Also {', '.join(also)}, as above." if also else ""
        rows.append(row(f"**`{kind.form}`**", about))
        rows += [row(*line) for line in own if line not in seen]
        seen |= own.keys()
    return "\n".join(rows)


def drawn() -> Iterator[tuple[str, str, str]]:
    """Yield page, name and text of every table."""
    yield "settings.md", "options of all roles", table_of(list(declared(NodeConfig)))
    for role in ROLES:
        yield "settings.md", f"options of an {role}".replace("an c", "a c"), role_table(role)
    yield "recipe.md", "kinds of streams", stream_table()


@pytest.mark.parametrize(("page", "name", "text"), list(drawn()), ids=lambda value: value[:30])
def test_the_page_has_the_table_of_the_code(page: str, name: str, text: str) -> None:
    written = (DOCS / page).read_text(encoding="utf-8")
    assert f"<!-- {name} -->\n{text}\n<!-- end -->" in written, "draw them anew"


if __name__ == "__main__":
    for page, name, text in drawn():
        path = DOCS / page
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        changed = f"\\g<1>{text.replace(chr(92), chr(92) * 2)}\n\\g<2>"
        path.write_text(re.sub(pattern, changed, path.read_text("utf-8"), flags=re.DOTALL), "utf-8")
