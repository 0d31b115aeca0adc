"""Every command of every document is run here, or it is said why not."""

import re
import shlex
import subprocess

import pytest

from tests.typed import parse

from . import test_examples, test_first_hour, test_replay, test_tutorials, test_your_model
from .pages import ROOT, Page

PLAYS = (test_examples, test_first_hour, test_replay, test_tutorials, test_your_model)
"""The modules that name what they run."""

TESTBED = Page("docs/testbed.md")
TESTBED.skips(
    "minutes each; tests/testbed/study/test_streams.py plays the same world, smaller",
    "fedagent testbed compare bas-a9a --policies all --seeds 5 --plot bas.svg",
    "fedagent testbed compare bas-ml100k --policies primal-dual+budgeted-ucb,fixed-5+fixed-best",
    "fedagent testbed compare bas-drift",
    "fedagent testbed compare weather",
)
INIT = Page("docs/policies/quick-init-ucb.md")
INIT.skips("a minute of two cores; tests/testbed plays this world, smaller", *INIT.commands)
OORT = Page("docs/policies/oort.md")
OORT.skips("minutes of two cores; tests/coordinator/policies/test_oort.py plays it", *OORT.commands)
FAIR_SET = Page("docs/policies/rbcs-f.md")
FAIR_SET.skips("a minute of two cores; bench/experiments plays them", *FAIR_SET.commands)
DEPLOYING = Page("docs/deploy.md")
DEPLOYING.skips(
    "needs a user's systemd, which tests/e2e/test_service_lives.py makes",
    "fedagent service install agent --mine",
    "loginctl enable-linger",
    "systemctl --user status fedagent-agent",
    "journalctl --user-unit fedagent-agent --follow",
)
DEPLOYING.skips(
    "needs Docker, Ansible, Litestream or root; tests/cli/test_deployment.py reads their files",
    *(line for line in DEPLOYING.commands if "--mine" not in line and "linger" not in line),
)
COMMANDS = Page("docs/cli.md")
COMMANDS.skips(
    "files of nobody in particular; the sensor's tutorial predicts",
    "fedagent predict model.onnx --stream csv:meter.csv",
)
OWN = Page("docs/policies/write-your-own.md")
OWN.skips(
    "needs the page's package: tests/docs/test_write_your_own.py",
    "fedagent testbed compare cocs-decisions --policies thrifty,cheapest,random",
)
TROUBLE = Page("docs/troubleshooting.md")
TROUBLE.skips(
    "the lines of quickstart.md with other numbers; tests/documents/test_first_hour.py runs those",
    *TROUBLE.commands,
)
EXPERIMENTS = Page("docs/experiments.md")
EXPERIMENTS.skips(
    "hours of playing; bench/checks loads every one of them and plays some",
    *(line.partition("#")[0].rstrip() for line in EXPERIMENTS.commands),
)
CONTRIBUTING = Page("CONTRIBUTING.md")
CONTRIBUTING.skips("what CI runs; this is in it", "make check", "make test", "make test-all")
CONTRIBUTING.skips("tests/docs/test_site.py builds the same", "make docs")
CONTRIBUTING.skips("hours of measuring; bench/checks holds the pages against them", "make bench")

ROOT_PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md")
NAMES = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT_PAGES, *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md"))
)


@pytest.mark.parametrize("name", NAMES)
def test_no_line_is_left_out(name: str) -> None:
    page = Page.known.get(name) or Page(name)
    bare = [b.number for b in page.blocks if not b.language and re.search("^fedagent ", b.text)]
    assert not bare, f"{name}: the blocks at lines {bare} are commands: begin them with ```sh"
    left = page.left_over()
    assert not left, f"{name} has lines that no test runs: name them in tests/documents"


MADE = [line for page in Page.known.values() for line in page.skipped if line.startswith("make ")]


@pytest.mark.parametrize("line", MADE)
def test_what_is_made_is_a_target(line: str) -> None:
    words = shlex.split(line, comments=True)
    subprocess.run([*words, "--dry-run"], cwd=ROOT, capture_output=True, check=True)


SKIPPED = [
    pytest.param(line, id=f"{page.name}:{page.commands[line][0]}")
    for page in Page.known.values()
    for line in page.skipped
    if re.search(r"\bfedagent [a-z]", line)
]


@pytest.mark.parametrize("line", SKIPPED)
def test_what_is_not_run_can_be_read_by_the_program(line: str) -> None:
    words = shlex.split(line.replace("\\\n", " "), comments=True)
    parse(words[next(i for i, word in enumerate(words) if word.endswith("fedagent")) + 1 :])
