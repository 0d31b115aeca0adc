"""The pages of the policies keep up: every name, parameter, default and need, no other."""

import ast
import math
import re
import tomllib
from pathlib import Path

import pytest

from fedagent_coordinator import placement, policies, solvers

PAGES = Path(__file__).parents[2] / "docs" / "policies"
GUIDES = {"README", "placement", "write-your-own"}
ROWS = ("optimises", "use it when", "needs", "cost", "paper")
PLACEMENTS = placement.names()


def text_of(page: str) -> str:
    return (PAGES / f"{page}.md").read_text(encoding="utf-8")


def policy_page(name: str) -> str:
    return text_of(name)


def placement_section(name: str) -> str:
    """Return what stands below a placement's heading."""
    parts = re.split(r"^## `([a-z-]+)`$", text_of("placement"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[name]


def parameters_of(text: str) -> dict[str, object]:
    """Return names and defaults of the table of parameters."""
    table = re.search(r"^\| name \| default \| meaning \|\n.*\n((?:\|.*\n)*)", text, re.MULTILINE)
    rows = re.findall(
        r"^\| `(\w+)` \| `?(.+?)`? \| .+ \|$", table[1] if table else "", re.MULTILINE
    )
    assert not table or len(rows) == table[1].count("\n"), "a row cannot be read"
    assert len(dict(rows)) == len(rows), "a parameter has two rows"
    return {name: value(default) for name, default in rows}


def value(text: str) -> object:
    """Return what a default's text stands for: a recipe's value, or None for ``unset``."""
    known: dict[str, object] = {"unset": None, "true": True, "false": False}
    return known[text] if text in known else ast.literal_eval(text)


def same(documented: object, real: object) -> bool:
    """Whether a page names this default, to the digits it prints; a list stands for a tuple."""
    if isinstance(real, tuple):
        real = list(real)
    if isinstance(documented, float) and isinstance(real, float):
        return math.isclose(documented, real, rel_tol=1e-4)
    return type(documented) is type(real) and documented == real


def expect_parameters(text: str, real: dict[str, object]) -> None:
    documented = parameters_of(text)
    assert set(documented) == set(real)
    wrong = {name: real[name] for name in real if not same(documented[name], real[name])}
    assert not wrong, f"the page has other defaults than {wrong}"
    if not real:
        assert re.search(r"^(None|No parameters)\.", text, re.MULTILINE)


def rows_of(text: str) -> dict[str, str]:
    return dict(re.findall(r"^\| ([a-z ]+) \| (.+) \|$", text, re.MULTILINE))


@pytest.mark.parametrize("name", policies.registry.builtin)
def test_a_policys_page_has_its_parameters_and_no_other(name: str) -> None:
    expect_parameters(policy_page(name), dict(policies.parameters(name)))


@pytest.mark.parametrize("name", policies.registry.builtin)
def test_a_policys_page_says_what_it_needs(name: str) -> None:
    page = policy_page(name)
    assert f"`{name}`" in page.partition("\n")[0]
    rows = rows_of(page)
    assert set(ROWS) <= set(rows)
    needs = policies.create(name).needs
    first = re.split(r"[;:]", rows["needs"])[0]
    assert set(re.findall(r"`(\w+)`", first)) == needs or (not needs and "nothing" in rows["needs"])


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_placements_section_has_its_parameters_and_no_other(name: str) -> None:
    section = placement_section(name)
    expect_parameters(section, dict(placement.registry.parameters(name)))
    assert set(ROWS) <= set(rows_of(section))


def test_every_page_is_of_something_that_is_registered() -> None:
    pages = {path.stem for path in PAGES.glob("*.md")}
    assert pages - GUIDES == set(policies.registry.builtin)
    headings = re.findall(r"^## `([a-z-]+)`$", text_of("placement"), re.MULTILINE)
    assert sorted(headings) == sorted(PLACEMENTS)


def test_the_readme_lists_every_policy_placement_and_solver_once() -> None:
    readme = text_of("README")
    listed = re.findall(r"^\| \[`([a-z-]+)`\]\(([a-z-]+)\.md\) \|.* \|$", readme, re.MULTILINE)
    assert [(name, name) for name in sorted(policies.registry.builtin)] == sorted(listed)
    line = re.search(r"\[placements\]\(placement\.md\)[^.]*", readme)
    assert line
    assert sorted(re.findall(r"`([a-z-]+)`", line[0])) == sorted(PLACEMENTS)
    section = readme.partition("## Solvers")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \| .* \| (.+) \|$", section, re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(solvers.names())
    for name, told in rows:
        named = {key: value(v) for key, v in re.findall(r"`(\w+)` `?([\d.]+|\"\w+\")`?", told)}
        assert named == solvers.registry.parameters(name), name


@pytest.mark.parametrize("page", ["README", "fair"])
def test_recipes_on_the_pages_build_their_policy(page: str) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", text_of(page), re.DOTALL)
    assert blocks
    for block in blocks:
        chosen = tomllib.loads(block)["policy"]
        assert policies.create(chosen["name"], **chosen["params"])
