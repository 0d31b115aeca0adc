"""The pages of the policies keep up: every name, parameter and need is there."""

import re
from pathlib import Path

import pytest

from fedagent_coordinator import placement, policies, solvers

PAGES = Path(__file__).parents[2] / "docs" / "policies"


def text_of(page: str) -> str:
    return (PAGES / f"{page}.md").read_text(encoding="utf-8")


def about(name: str, page: str) -> str:
    """Return a policy's own page, or its row and section in a page of several."""
    if (PAGES / f"{name}.md").exists():
        return text_of(name)
    text = text_of(page)
    row = re.search(rf"^\| `{name}` \|.*$", text, re.MULTILINE)
    assert row, f"{page}.md has no row of {name}"
    return row[0] + text.partition(f"\n## `{name}`\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("name", policies.registry.builtin)
def test_a_policys_page_names_its_parameters_and_needs(name: str) -> None:
    page = about(name, "baselines")
    # What `fastest` shares with RBCS-F stands on that page.
    named = page + (text_of("rbcs-f") if name == "fastest" else "")
    for wanted in (*policies.parameters(name), *policies.create(name).needs):
        assert f"`{wanted}`" in named, f"{wanted} of {name}"


def test_the_readme_names_every_policy_placement_and_solver() -> None:
    readme = text_of("README")
    for name in (*policies.registry.builtin, *placement.names(), *solvers.names()):
        assert f"`{name}`" in readme, name
    for name in placement.names():
        for wanted in (name, *placement.registry.parameters(name)):
            assert f"`{wanted}`" in text_of("placement"), f"{wanted} of {name}"
    for name in solvers.names():
        assert all(f"`{one}`" in readme for one in solvers.registry.parameters(name)), name
