"""How an extra of this installation is added: every hint that names one asks here.

By name alone pip may find a stranger's package: it is the file or the folder that this
fedagent came from (PEP 610) that is named.
"""

import json
import os
import shlex
import sys
from itertools import chain
from pathlib import Path
from urllib.parse import unquote, urlsplit


def how_to_add(extra: str) -> str:
    """Return the command that adds an extra to the environment that runs this."""
    source = source_of(extra)
    if source is None:
        return (
            f'make wheel in a copy of fedagent, then {_pip()} install "$(ls dist/*.whl)[{extra}]"'
        )
    return f"{_pip()} install {source}"


def source_of(extra: str = "") -> str | None:
    """Return what to give to ``pip install`` for this fedagent; None where it is gone."""
    return _source(_direct_url(), extra)


def _direct_url() -> str | None:
    # `importlib.metadata` finds it too, and costs every command 20 ms.
    found = (Path(folder).glob("fedagent-*.dist-info/direct_url.json") for folder in sys.path)
    return next((path.read_text("utf-8") for path in chain.from_iterable(found)), None)


def _source(record: str | None, extra: str) -> str | None:
    try:
        found = json.loads(record or "")
        url, folder = str(found["url"]), found.get("dir_info")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if not url.startswith("file:"):
        return None
    path = Path(unquote(urlsplit(url).path))
    if not path.exists():
        return None
    editable = "-e " if isinstance(folder, dict) and folder.get("editable") else ""
    return editable + shlex.quote(f"{path}[{extra}]" if extra else str(path))


def _pip() -> str:
    if os.environ.get("VIRTUAL_ENV") == sys.prefix:
        return "pip"
    pip = Path(sys.prefix) / "bin" / "pip"
    if sys.prefix != sys.base_prefix and pip.is_file():
        return shlex.quote(str(pip))
    return f"{shlex.quote(sys.executable)} -m pip"
