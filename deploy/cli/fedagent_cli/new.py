"""`fedagent new`: a project that runs as it stands."""

import keyword
import re
from importlib.util import find_spec
from pathlib import Path

import click

from . import options
from .errors import UsageError
from .output import echo, emit, writing

FOLDER = Path(__file__).parent / "templates"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_MAX_NAME = 40


@click.command(
    epilog=options.examples(
        "fedagent new my-model",
        "fedagent new boiler --template sensor",
        "fedagent new thrifty --template policy",
    )
)
@click.argument("name")
@click.option(
    "--template",
    type=click.Choice(["torch", "sensor", "policy", "stream"]),
    default="torch",
    help="torch, sensor, policy or stream.",
)
@options.as_json
def new(name: str, *, template: str, as_json: bool) -> None:
    """Create a project that runs unchanged: code, recipe, README and one test.

    NAME is the project's, and that of its folder. A PyTorch model that devices train without your
    code, a sensor's readings, a policy that selects who trains, or a stream that a device trains
    on. Nothing is overwritten.
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
        emit({"folder": str(folder), "template": template, "files": sorted(files)})
        return
    for path in files:
        echo(f"{folder / path}")
    echo(f"Next: cd {name}, then follow its README.md.")


def written(name: str, template: str) -> dict[str, str]:
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
    for path in sorted((FOLDER / template).rglob("*.txt")):
        inside = str(path.relative_to(FOLDER / template)).removesuffix(".txt")
        text = path.read_text(encoding="utf-8")
        for word, value in words.items():
            text = text.replace(word, value)
        found[inside.replace("NAME", module)] = text
    return found
