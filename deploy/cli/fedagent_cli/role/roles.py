"""`fedagent agent`, `edge` and `coordinator`: run a role; the word `start` may follow.

Their options are the fields of the role's configuration (`fedagent_protocol.option`).
"""

from functools import cached_property
from pathlib import Path

import click

from fedagent_cli import extras, options, places
from fedagent_cli.command_line import MOST, Number
from fedagent_cli.errors import UsageError
from fedagent_cli.role import launch
from fedagent_node.settings import read_settings
from fedagent_protocol.option import Declared

SHOWN = {
    "agent": ("stream", "name", "join", "site", "edges", "insecure", "data_dir"),
    "edge": ("name", "join", "site", "coordinator", "listen", "insecure", "data_dir"),
    "coordinator": ("recipe", "sets", "policy", "new_run", "more_rounds", "listen", "data_dir"),
}
"""Keys whose options `--help` shows; `--help-all` and docs/settings.md have the others."""
PRINT = "Check and print the configuration without starting anything."


class Role(click.Command):
    """Runs a role; its options are made of its configuration when they are asked for."""

    def __init__(self, role: str, about: str, *lines: str) -> None:
        epilog = options.examples(*lines)
        super().__init__(role, callback=self._become, help=about, epilog=epilog)
        self._role = role

    @cached_property
    def _options(self) -> list[click.Option]:
        shown = SHOWN[self._role]
        found = {".".join(one.keys): one for one in launch.options_of(self._role)}
        first = [_option(found.pop(key)) for key in shown]
        return [
            *first,
            click.Option(["--config"], type=options.FILE, help=options.CONFIG),
            click.Option(["--json", "as_json"], is_flag=True, hidden=True, help=options.JSON),
            click.Option(["--print-config"], is_flag=True, hidden=True, help=PRINT),
            *(_option(one, hidden=True) for one in found.values()),
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=self._show_all,
                help="Show every option and exit.",
            ),
        ]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options: the most used ones, then hidden ones."""
        self.params = list(self._options)
        return super().get_params(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Leave out the word `start`."""
        return super().parse_args(ctx, args[1:] if args[:1] == ["start"] else args)

    def _show_all(self, ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
        if wanted:
            for one in self._options:
                one.hidden = False
            click.echo(self.get_help(ctx))
            ctx.exit()

    def _become(
        self, *, config: Path | None, print_config: bool, as_json: bool, **given: object
    ) -> None:
        file = {} if config is None else read_settings(str(config))
        made = launch.configuration(self._role, file, given)
        _complete(self._role, made)
        launch.become(self._role, made, print_config=print_config, as_json=as_json)


def _option(one: Declared, *, hidden: bool = False) -> click.Option:
    """Return the option of a configuration's field; not given, it is None or empty."""
    least = -MOST if one.option.at_least is None else one.option.at_least
    kind = Number(one.kind, min=least) if one.kind in (int, float) else None
    return click.Option(
        [one.parameter, one.name],
        type=options.PATH if one.option.path else kind,
        is_flag=one.kind is bool,
        default=None,
        multiple=one.many,
        metavar=one.option.metavar,
        show_default=False,
        hidden=hidden,
        help=one.option.help + (f"  [default: {one.shown_default}]" if one.shown_default else ""),
    )


def _complete(role: str, made: launch.Config) -> None:
    """Look for what a role cannot be without; name the data directory unless it is given."""
    if role == "agent" and "stream" not in made:
        raise UsageError("no stream to train on", "add one, e.g. --stream digits")
    if role == "coordinator":
        extras.need("rich", "coordinator")
        if "recipe" not in made:
            known = ", ".join(places.recipe_names())
            raise UsageError("no recipe", f"add --recipe with a file, or one of: {known}")
        made["recipe"] = str(places.find_recipe(str(made["recipe"])))
    if "data_dir" not in made:
        name = made.get("name")
        made["data_dir"] = str(places.data_dir(role, None if name is None else str(name)))


agent = Role(
    "agent",
    """Run this device as an agent: find the edges and train on its own stream.

    It trains when an edge orders it to, and sends updates, never samples. One agent
    per data directory; a second one on the same directory ends with exit code 75.
    """,
    "fedagent agent --stream digits",
    "fedagent agent --name kitchen --stream csv:/var/log/meter.csv",
    "fedagent agent --stream digits --edge 192.168.1.20:1883 --insecure",
)
edge = Role(
    "edge",
    """Run an edge aggregator: a broker for the devices near it, and their average.

    It advertises itself, collects updates until the deadline, averages them and
    reports to the coordinator, which it finds by zeroconf.
    """,
    "fedagent edge --name hall",
    "fedagent edge --name hall --insecure --listen 0.0.0.0",
    "fedagent edge --broker mqtt://192.168.1.10:1883 --insecure",
)
coordinator = Role(
    "coordinator",
    """Run the coordinator: in each round it decides who trains where, and pays for it.

    The same recipe continues the run of this data directory; another one needs
    --new-run. It ends with exit code 0 after the last round; --more-rounds continues.
    """,
    "fedagent coordinator --recipe digits",
    "fedagent coordinator --recipe my.toml --policy cheapest --seed 7",
    "fedagent coordinator --recipe digits --set rounds.count=10 --new-run",
    "fedagent coordinator --recipe digits --more-rounds 30",
    "fedagent coordinator --recipe digits --new-run --init digits.safetensors",
)
