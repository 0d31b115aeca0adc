"""`fedagent demo`: ask, run, and tell what came of it."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

from fedagent_cli import command_line, launch, options
from fedagent_cli.errors import UsageError

if TYPE_CHECKING:
    from .plan import Plan
    from .run import DemoSettings

Agents = Annotated[
    int | None,
    command_line.Option(
        min=1, max=64, help="Devices.", show_default="8; 10 where clients evaluate the model"
    ),
]
Edges = Annotated[
    int | None,
    command_line.Option(
        min=1,
        max=16,
        help="Edge aggregators.",
        show_default="2; 3 where the recipe rents them, 1 where neighbours decide",
    ),
]
Rounds = Annotated[
    int | None,
    command_line.Option(min=1, max=100_000, help="Rounds.", show_default="that of the recipe"),
]
Policy = Annotated[
    str | None,
    command_line.Option(help="Policy that chooses who trains.", show_default="that of the recipe"),
]
Seed = Annotated[
    int | None,
    command_line.Option(
        min=0, help="Seed of all random numbers.", show_default="that of the recipe"
    ),
]
Recipe = Annotated[str, command_line.Option(help="Recipe for digits: a file or a bundled name.")]
Task = Annotated[
    Path | None,
    command_line.Option(
        help="Task file of your own model, instead of a recipe.", show_default=False
    ),
]
Stream = Annotated[
    str | None,
    command_line.Option(
        help="Stream of each device; {i} is its number, {n} how many there are.",
        show_default="the bundled digits",
    ),
]
Dataset = Annotated[
    str | None,
    command_line.Option(help="Dataset that is split among the devices.", show_default=False),
]
Test = Annotated[
    str | None,
    command_line.Option(
        help="Dataset that the model is evaluated on.", show_default="that of the recipe"
    ),
]
Broker = Annotated[
    str, command_line.Option(help="auto, mosquitto, embedded, or the URL of a running broker.")
]
Dear = Annotated[
    bool,
    command_line.Option("--dear", help="Add a device whose price exceeds an edge's budget."),
]
Folder = Annotated[
    Path | None,
    command_line.Option(
        "--dir", help="Folder for logs and report.", show_default="fedagent-demo/<time>-<id>"
    ),
]
Keep = Annotated[
    bool, command_line.Option("--keep", help="Also keep the data directories of agents and edges.")
]

Web = Annotated[
    bool,
    command_line.Option("--web", help="Serve the live page, and open it if there is a screen."),
]

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def demo(
    *,
    agents: Agents = None,
    edges: Edges = None,
    rounds: Rounds = None,
    policy: Policy = None,
    seed: Seed = None,
    recipe: Recipe = "demo",
    task: Task = None,
    stream: Stream = None,
    dataset: Dataset = None,
    test: Test = None,
    broker: Broker = "auto",
    dear: Dear = False,
    folder: Folder = None,
    keep: Keep = False,
    web: Web = False,
    as_json: options.AsJson = False,
) -> None:
    """Run a whole federation on this machine and watch it.

    A coordinator, edges and devices as separate processes find each other by zeroconf
    on loopback, learn handwritten digits over MQTT, two digits per device, with a
    budget for about six of eight. One device is too slow, one is killed half way.
    Where clients evaluate the model (fa-digits, da-digits), some hold all ten digits.
    With --task they train your model, on digits or on what --stream or --dataset names.
    Ctrl-C ends everything cleanly and still writes the report.
    """
    launch.need_coordinator("the demo")
    # Before the heavy imports: a signal has its clean end and its result from here on.
    with remembered() as caught:
        from .prepare import prepare  # noqa: PLC0415 - heavy imports belong to the command

        settings, plan = prepare(
            agents=agents,
            edges=edges,
            rounds=rounds,
            policy=policy,
            seed=seed,
            recipe=_learnt(recipe, task),
            stream=stream,
            dataset=dataset,
            test=test,
            broker=broker,
            dear=dear,
            folder=folder,
        )
        settings = replace(settings, web=web)
        code = _run(settings, plan, keep=keep, as_json=as_json, caught=caught)
    raise command_line.Exit(code)


def _learnt(recipe: str, task: Path | None) -> str:
    if task is None:
        return recipe
    if recipe != "demo":
        both = "--recipe and --task cannot be combined"
        raise UsageError(both, "give one of them; a recipe names its task file as model.task")
    return str(task)


@contextmanager
def remembered() -> Iterator[Callable[[], int]]:
    """Take the signals of `ENDING`, so that no clean-up is interrupted.

    Yields what returns the first that came, 0 before it.
    """
    seen: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        seen.append(number)

    before = {number: signal.signal(number, remember) for number in ENDING}
    try:
        yield lambda: seen[0] if seen else 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(
    settings: "DemoSettings", plan: "Plan", *, keep: bool, as_json: bool, caught: Callable[[], int]
) -> int:
    from .result import conclude  # noqa: PLC0415 - heavy imports belong to the command
    from .run import Demo, tidy  # noqa: PLC0415
    from .view import choose_view  # noqa: PLC0415

    view = choose_view(as_json=as_json)
    finish = Demo(settings=settings, plan=plan, view=view, caught=caught).run()
    code = conclude(finish, settings=settings, plan=plan, as_json=as_json)
    if not keep:
        tidy(settings.directory, plan)
    return code
