"""Every crash point of the roles, as their code marks it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = {"coordinator": "coordinator", "edge": "edge_aggregator", "agent": "agent"}
TEXTS = {
    role: "".join(path.read_text() for path in sorted((ROOT / folder).rglob("*.py")))
    for role, folder in FOLDERS.items()
}
TRANSACTIONS = frozenset(re.findall(r"\.transaction\(\"([\w-]+)\"[,)]", "".join(TEXTS.values())))
"""Each has three points: before it is committed, after that, and with the mark outside it risen."""
STEPS = frozenset(
    f"{one}.{step}" for one in TRANSACTIONS for step in ("before-commit", "committed", "marked")
)
POINTS = {
    role: {
        name.removeprefix(f"{role}.")
        for name in re.findall(r"(?:\bMark|heckpoint)\(\"([\w.-]+)\"\)", text)
    }
    | (STEPS if role == "coordinator" else frozenset())
    for role, text in TEXTS.items()
}
