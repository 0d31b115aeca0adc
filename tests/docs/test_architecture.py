"""The layers in docs/architecture.md are those that import-linter proves, and every ADR is listed.

``python -m tests.docs.test_architecture`` draws them anew.
"""

import importlib.util
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
ADR = ROOT / "docs" / "adr"
PACKAGES = (
    "agent",
    "coordinator",
    "deploy/cli",
    "deploy/python",
    "deploy/testbed",
    "edge_aggregator",
    "protocol",
)
"""The folders that hold packages."""
BEGIN, END = "<!-- layers -->", "<!-- end of layers -->"
HOLDS = {
    "fedagent": "the same from Python: tasks, local runs, columns, models",
    "fedagent_cli": "commands, demo, report, services",
    "fedagent_testbed": "virtual fields, studies, traces",
    "fedagent_agent": "a device: stream, trainer, outbox, neighbours",
    "fedagent_edge": "a round at one edge: admission, mean, spool",
    "fedagent_coordinator": "rounds, policies, ledger, global model",
    "fedagent_node": "what every process has: shell, links, broker, discovery",
    "fedagent_task": "recipe, models, metrics, datasets, the round's rule",
    "fedagent_protocol": "messages, topics, bytes, transfer, errors, registries",
}


def contracts() -> list[dict[str, object]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[dict[str, object]] = project["tool"]["importlinter"]["contracts"]
    return found


def drawn() -> str:
    """Return the layers, the upper ones first; a line may import those below it."""
    rows = []
    for contract in contracts():
        if contract["type"] == "layers":
            layers = contract["layers"]
            assert isinstance(layers, list)
            for layer in layers:
                names = [name.strip() for name in str(layer).split("|")]
                rows += [f"  {name:<21} {HOLDS[name]}" for name in names]
                rows.append("  " + ("─" * 60))
    forbidden = [str(c["name"]) for c in contracts() if c["type"] == "forbidden"]
    told = "\n".join(f"- {name}" for name in forbidden)
    return "```\n" + "\n".join(rows[:-1]) + f"\n```\nBesides:\n{told}"


def test_the_page_draws_the_layers_that_are_proved() -> None:
    assert f"{BEGIN}\n{drawn()}\n{END}" in PAGE.read_text(encoding="utf-8"), "draw them anew"


def test_every_package_has_its_place() -> None:
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    assert set(linter["importlinter"]["root_packages"]) == set(HOLDS)


def test_every_decision_is_listed_once() -> None:
    index = (ADR / "README.md").read_text(encoding="utf-8")
    files = sorted(path.name for path in ADR.glob("[0-9]*.md"))
    assert sorted(re.findall(r"\]\(([0-9]{4}[^)]*\.md)\)", index)) == files
    assert max(Counter(name[:4] for name in files).values()) == 1


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md", "docs/glossary.md"])
def test_every_path_that_a_page_names_is_there(page: str) -> None:
    """Braces list files; a short path begins at a package, or where one before it led."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = 0
    for part in re.split(r"\n\n|\n(?=\s*\|)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        bases = [ROOT, *(ROOT / folder for folder in PACKAGES)]
        for path in re.findall(r"`([\w.{},/-]+(?:/|\.py|\.md|\.toml|/\w+))`", part):
            for one in spelled_out(path.replace("NAME", "adaptive")):
                places = [base / one for base in reversed(bases) if (base / one).exists()]
                assert places, f"{one} of {part}"
                folder = places[0] if places[0].is_dir() else places[0].parent
                bases += [folder.parent, folder]
                found += 1
    modules = re.findall(r"\bfedagent_\w+(?:\.\w+)+(?!\w|/)", text)
    assert not [name for name in modules if importlib.util.find_spec(name) is None]
    assert found


def spelled_out(path: str) -> list[str]:
    """Return `a/b.py` and `a/c.py` of `a/{b,c}.py`."""
    head, _, names = path.partition("{")
    inside, _, tail = names.partition("}")
    return [f"{head}{name}{tail}" for name in inside.split(",")]


def test_names_that_pages_link_to_code_are_there() -> None:
    """``X.name in [...](../file.py)``: that file has the name."""
    found = 0
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        for name, link in re.findall(r"`([\w.]+)` in \[`[^`]+`\]\(([^)#]+\.py)\)", text):
            code = (page.parent / link).resolve().read_text(encoding="utf-8")
            missing = [part for part in name.split(".") if not re.search(rf"\b{part}\b", code)]
            assert not missing, f"{page.name}: {link} has no {missing}"
            found += 1
    assert found >= 4


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{drawn()}\n{END}{rest.split(END)[1]}", encoding="utf-8")
