"""`fedagent task`: a PyTorch model as a file that devices train, with none of its code."""

import inspect
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import click

from fedagent_cli import options
from fedagent_cli.command_line import Group
from fedagent_cli.errors import CliError, UsageError
from fedagent_cli.extras import optional
from fedagent_cli.output import echo, emit, number_text, printable, style_of, writing
from fedagent_task.program.source import TaskSource
from fedagent_task.task_file import ROLES, SUFFIX, read_task_file, summary, write_task_file

SHAPE = "return (model, loss, example), with example = (x, y), one batch of tensors"
_FILE = """A file of yours, my_model.py:

\b
    import torch
    def build():
        model = torch.nn.Sequential(torch.nn.Linear(64, 10))
        example = torch.randn(4, 64), torch.randint(0, 10, (4,))
        return model, torch.nn.functional.cross_entropy, example

"""
app = Group(
    "task",
    help="Build a task from a PyTorch model.",
    no_args_is_help=True,
    epilog=_FILE + options.examples("fedagent task build my_model.py:build -o my_model.fedtask"),
)


@app.command(
    "build",
    epilog=options.examples(
        "fedagent task build my_model.py:build",
        "fedagent task build my_model.py:build -o first.fedtask --json",
        "fedagent task build package.module:build",
    ),
)
@click.argument("source", metavar="SOURCE")
@click.option(
    "--out",
    "-o",
    type=options.PATH,
    show_default="the source's name .fedtask",
    help="File to write.",
)
@options.as_json
def task_build(source: str, *, out: Path | None, as_json: bool) -> None:
    """Write a model and its loss to a task file: operators, initial tensors, sample format.

    SOURCE is FILE.py:FUNCTION or MODULE:FUNCTION. The function returns the model, the loss and one
    batch as an example; it runs on this machine only. Devices with torch train the task file; none
    of your code is installed there.
    """
    if out is not None:
        style_of(out, SUFFIX)
    making = optional("fedagent_task.program.export", "torch")
    found, name = called(source)
    made = making.make_task(found)
    target = out if out is not None else Path(f"{name}{SUFFIX}")
    with writing(target):
        size = write_task_file(target, made.task)
    told = {"file": str(target), "bytes": size, "loss": made.loss, "notes": list(made.notes)}
    _show({**told, **summary(read_task_file(target))}, as_json=as_json)


@app.command(
    "show",
    epilog=options.examples(
        "fedagent task show my_model.fedtask", "fedagent task show my_model.fedtask --json"
    ),
)
@click.argument("path", type=options.PATH, metavar="FILE")
@options.as_json
def task_show(path: Path, *, as_json: bool) -> None:
    """Show the content of a task file: inputs, tensors by role, operators and sizes."""
    told = summary(read_task_file(path))
    _show({"file": str(path), "bytes": path.stat().st_size, **told}, as_json=as_json)


def called(source: str) -> tuple[TaskSource, str]:
    """Call the function that makes a model; return what it made, and a name for it.

    Raises:
        UsageError: There is none, it fails, or it gives something else.
    """
    place, _, function = source.rpartition(":")
    if not place or not function.isidentifier():
        raise UsageError(f"no source: {source!r}", "write FILE.py:FUNCTION or MODULE:FUNCTION")
    try:
        # What the file prints is no part of what this command prints.
        with redirect_stdout(sys.stderr):
            module = _file(Path(place)) if place.endswith(".py") else import_module(place)
            made = _function(module, function)()
            made = getattr(made, "source", made)  # of a fedagent.Task
    except CliError:
        raise
    except (Exception, SystemExit) as error:
        wrong = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise UsageError(f"{source} fails: {wrong}", "run it in Python to see where") from error
    if isinstance(made, tuple) and len(made) == 3:
        made = TaskSource(*made)
    if not isinstance(made, TaskSource):
        raise UsageError(f"{source} gives {type(made).__name__}", SHAPE)
    return made, Path(place).stem


def _function(module: ModuleType, name: str) -> Callable[[], object]:
    found = getattr(module, name, None)
    if callable(found):
        return cast("Callable[[], object]", found)
    own = [key for key, one in vars(module).items() if inspect.isfunction(one)]
    known = ", ".join(key for key in own if not key.startswith("_")) or "none"
    raise UsageError(f"there is no function {name!r}", f"there are: {known}")


def _file(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"there is no file {path}", "name a Python file of yours")
    module = module_from_spec(spec)
    # Its own imports may be of its neighbours, and its classes are looked up by its name.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _show(told: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit(told)
        return
    label = "none: the loss reads the inputs" if told["target"] is None else "a number"
    if told["target"] is not None and told["classes"]:
        named = f": {', '.join(told['labels'][:8])}" if told["labels"] else ""
        label = f"one of {told['classes']} classes{named}"
    known = told["operators"]
    words = ", ".join(f"{name} {count}x" if count > 1 else name for name, count in known.items())
    program, most = _size(told["program_bytes"]), _size(told["program_bytes_limit"])
    rows = [
        ("file", f"{told['file']}, {_size(told['bytes'])}"),
        *(("input", _input(one)) for one in told["inputs"]),
        ("label", label),
        *(
            (f"tensors, {role}", f"{one['tensors']} of {one['numbers']:,} in all: {ROLES[role]}")
            for role, one in told["tensors"].items()
        ),
        ("operators", f"{len(known)}: {words}"),
        ("program", f"{program} of at most {most}"),
        ("ONNX graph", _size(told["onnx_bytes"]) if told["onnx_bytes"] else "none"),
    ]
    if "loss" in told:
        rows.append(("loss", f"{number_text(told['loss'])} on the example, as scoring sees it"))
    for name, text in rows:
        echo(f"{name:<18}{printable(text)}")
    for note in told.get("notes", ()):
        echo(note)


def _input(one: dict[str, Any]) -> str:
    first, beyond = one["columns"]
    return f"{one['name']}: {one['dtype']} {one['shape']}, columns {first} to {beyond - 1}"


def _size(size: int) -> str:
    for unit, step in (("MB", 1_000_000), ("kB", 1000)):
        if size >= step:
            return f"{size / step:.1f} {unit}"
    return f"{size} bytes"
