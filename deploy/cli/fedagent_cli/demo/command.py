"""`fedagent demo`: ask, run, and tell what came of it."""

from pathlib import Path
from typing import Annotated

from fedagent_cli import command_line, launch, options

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
Folder = Annotated[
    Path | None,
    command_line.Option(
        "--dir",
        help="Folder for logs, report and all data directories.",
        show_default="fedagent-demo/<time>-<id>",
    ),
]

Web = Annotated[
    bool,
    command_line.Option("--web", help="Serve the live page, and open it if there is a screen."),
]


def demo(
    *,
    agents: Agents = None,
    edges: Edges = None,
    rounds: Rounds = None,
    policy: Policy = None,
    seed: Seed = None,
    recipe: Recipe = "demo",
    folder: Folder = None,
    web: Web = False,
    as_json: options.AsJson = False,
) -> None:
    """Run a whole federation on this machine and watch it.

    A coordinator, edges and devices as separate processes find each other by zeroconf
    on loopback, learn handwritten digits over MQTT, two digits per device, with a
    budget for about six of eight. One device is too slow, one is killed half way.
    Where clients evaluate the model (fa-digits, da-digits), some hold all ten digits.
    Your own model and data run the same way from Python, with fedagent.run_local.
    Ctrl-C ends everything cleanly and still writes the report.
    """
    launch.need_coordinator("the demo")
    from fedagent_testbed.local_fleet import remembered, tidy  # noqa: PLC0415 - heavy imports

    # Before the other imports: a signal has its clean end and its result from here on.
    with remembered() as caught:
        from .prepare import prepare  # noqa: PLC0415 - heavy imports belong to the command
        from .result import conclude  # noqa: PLC0415
        from .run import run_demo  # noqa: PLC0415
        from .view import choose_view  # noqa: PLC0415

        settings, plan = prepare(
            agents=agents,
            edges=edges,
            rounds=rounds,
            policy=policy,
            seed=seed,
            recipe=recipe,
            folder=folder,
            web=web,
        )
        view = choose_view(as_json=as_json)
        finish = run_demo(settings, plan, view, caught=caught)
        code = conclude(finish, settings=settings, plan=plan, as_json=as_json)
        if folder is None:
            tidy(settings.directory, (*plan.edges, *(agent.name for agent in plan.agents)))
    raise command_line.Exit(code)
