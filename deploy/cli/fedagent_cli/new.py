"""`fedagent new`: a project that runs as it stands."""

import keyword
import re
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from . import command_line, options
from .errors import UsageError
from .output import echo, emit, writing

FOLDER = Path(__file__).parent / "templates"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_MAX_NAME = 40


class Template(StrEnum):
    """What a project is about."""

    TORCH = "torch"
    SENSOR = "sensor"
    POLICY = "policy"
    STREAM = "stream"


def new(
    name: Annotated[
        str,
        command_line.Argument(help="Name of the project; a folder of that name is created here."),
    ],
    *,
    template: Annotated[
        Template, command_line.Option(help="torch, sensor, policy or stream.")
    ] = Template.TORCH,
    as_json: options.AsJson = False,
) -> None:
    """Create a project that runs unchanged: code, recipe, README and one test.

    A PyTorch model that devices train without your code, a sensor's readings, a policy that
    selects who trains, or a stream that a device trains on. Nothing is overwritten.
    """
    files = written(name, template)
    folder = Path(name)
    if folder.exists():
        raise UsageError(f"{folder} already exists", "take another name, or another folder")
    with writing(folder, hint="change to a folder with write permission"):
        for path, text in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    if as_json:
        emit({"folder": str(folder), "template": template.value, "files": sorted(files)})
        return
    for path in files:
        echo(f"{folder / path}")
    echo(f"Next: cd {name}, then follow its README.md.")


def written(name: str, template: Template) -> dict[str, str]:
    """Return the files of a project by path.

    Raises:
        UsageError: No project can have the name.
    """
    module = name.replace("-", "_")
    if not _NAME.fullmatch(name) or len(name) > _MAX_NAME:
        rule = f"use lower-case letters, digits and single '-', at most {_MAX_NAME}"
        raise UsageError(f"not a name: {name!r}", rule)
    if keyword.iskeyword(module) or find_spec(module) is not None:
        raise UsageError(f"{module} is already a Python module", "take another name")
    words = {
        "{{name}}": name,
        "{{module}}": module,
        "{{class}}": "".join(part.capitalize() for part in name.split("-")),
    }
    found = {}
    for path in sorted((FOLDER / template.value).rglob("*.txt")):
        inside = str(path.relative_to(FOLDER / template.value)).removesuffix(".txt")
        text = path.read_text(encoding="utf-8")
        for word, value in words.items():
            text = text.replace(word, value)
        found[inside.replace("NAME", module)] = text
    return found
