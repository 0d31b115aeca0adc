"""The commands of `fedagent`, mounted."""

import os
import sys
from typing import Annotated

from click.exceptions import ClickException, NoArgsIsHelpError

from . import beliefs, command_line, doctor, launch, models, opinions, predict, reading, start
from .demo import command as demo_command
from .errors import UsageError
from .options import examples
from .output import echo
from .report import command as report_command
from .service import command as service_command
from .testbed import command as testbed_command

app = command_line.CommandGroup(
    name="fedagent",
    help="Federated learning on real edge hardware.",
    no_args_is_help=True,
    epilog=examples(
        "fedagent demo",
        "fedagent coordinator start --recipe digits",
        "fedagent edge start",
        "fedagent start --stream digits",
        "fedagent doctor",
    ),
)
AGENT = "Run a role"
READ = "Read a run"
USE = "Use a model"
STUDY = "Study policies"
MACHINE = "Maintain this machine"

start.mount(app, panel=AGENT)
demo_command.mount(app, panel=AGENT)
reading.mount(app, panel=READ)
opinions.mount(app, panel=READ)
models.mount(app, panel=READ)
predict.mount(app, panel=USE)
report_command.mount(app, panel=READ)
testbed_command.mount(app, panel=STUDY)
service_command.mount(app, panel=MACHINE)
beliefs.mount(app, panel=MACHINE)
doctor.mount(app, panel=MACHINE)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - only when asked for

        echo(f"fedagent {version('fedagent')}")
        raise command_line.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        command_line.Option(
            "--version", help="Print the version.", callback=_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Federated learning on real edge hardware."""


def run() -> None:
    """Run the command that the arguments name.

    Raises:
        CliError: It failed in a foreseen way.
    """
    try:
        code = app()
    except NoArgsIsHelpError as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    except ClickException as error:
        problem = " ".join(error.format_message().split()).removesuffix(".")
        raise UsageError(problem, "see --help") from error
    except ModuleNotFoundError as error:
        if error.name not in launch.OF_A_COORDINATOR:
            raise
        raise launch.lacking("coordinator", who="this") from error
    except BrokenPipeError:
        # Whoever read this is gone, as in `| head`; nothing may be flushed there at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    raise SystemExit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    from .__main__ import main

    main()
