"""The command lines of the documents, taken from them letter by letter."""

import re
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^ *```(?P<language>[^\n`]*)\n(?P<text>.*?)^ *```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block, and where it stands."""

    language: str
    text: str
    number: int


class Page:
    """A document whose commands are run, each of them by name.

    A page is told at import what is done with each of its commands: `takes` and `skips`
    fail for a line that the document has not, `left_over` has what nobody named.
    """

    known: ClassVar[dict[str, "Page"]] = {}

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = (ROOT / name).read_text(encoding="utf-8")
        self._named: set[str] = set()
        self.skipped: dict[str, str] = {}
        Page.known[name] = self

    @property
    def blocks(self) -> list[Block]:
        """Every fenced block, in order."""
        found = []
        for match in _FENCE.finditer(self.text):
            number = self.text.count("\n", 0, match.start()) + 1
            found.append(Block(match["language"].strip(), match["text"], number))
        return found

    @property
    def commands(self) -> dict[str, list[int]]:
        """Every command of the shell blocks, with the numbers of its blocks' lines."""
        found: dict[str, list[int]] = defaultdict(list)
        for block in self.blocks:
            if block.language == "sh":
                for command in split(block.text):
                    found[command].append(block.number)
        return found

    def takes(self, *lines: str) -> list[str]:
        """Return lines of the document, named without the remarks behind them, to be run."""
        whole = {_without_remark(line): line for line in self.commands}
        for line in lines:
            assert line in whole, f"{self.name} has no line `{line}` (any more)"
        self._named |= {whole[line] for line in lines}
        return [whole[line] for line in lines]

    def skips(self, reason: str, *lines: str) -> None:
        """Say why lines of the document are not run here."""
        self.skipped |= dict.fromkeys(self.takes(*lines), reason)

    def left_over(self) -> dict[str, list[int]]:
        """Return the commands that nobody named, with the lines of their blocks."""
        return {line: at for line, at in self.commands.items() if line not in self._named}


@cache
def split(text: str) -> tuple[str, ...]:
    """Return the commands of a block: lines, joined where the shell wants more."""
    commands, pending = [], ""
    for line in text.splitlines():
        pending += line
        if pending.rstrip().endswith("\\") or not _is_whole(pending):
            pending += "\n"
            continue
        if pending.strip() and not pending.lstrip().startswith("#"):
            commands.append(pending.strip())
        pending = ""
    assert not pending, f"the shell cannot read {pending!r}"
    return tuple(commands)


def _without_remark(line: str) -> str:
    return re.sub(r"\s{2,}#[^\n]*$", "", line)


def _is_whole(text: str) -> bool:
    return (
        subprocess.run(["bash", "-n", "-c", text], capture_output=True, check=False).returncode == 0
    )
