"""The commands of `fedagent`, mounted."""

import os
import sys
from collections.abc import Callable

import click
from click.exceptions import ClickException, NoArgsIsHelpError

from fedagent_node.data_dir import is_disk_error

from . import broker, command_line, enrolment, launch, ledger, models, service, start
from .backup import backup, restore
from .beliefs import beliefs
from .demo.command import demo
from .doctor import doctor
from .errors import UNREAD, UnreadEnd, UsageError
from .export import export
from .new import new
from .opinions import opinions
from .options import examples
from .predict import predict
from .prune import prune
from .replay import replay
from .report.command import report
from .status import rounds, runs, status
from .task import app as task_app
from .testbed import command as testbed_command
from .why import why

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
click.version_option(
    package_name="fedagent", message="fedagent %(version)s", help="Print the version."
)(app.group)
AGENT = "Run a role"
READ = "Read a run"
USE = "Use a model"
STUDY = "Study policies"
MACHINE = "Maintain this machine"
BEGIN = "Begin"


def add(panel: str, command: Callable[..., None], *lines: str) -> None:
    """Add a command under its heading, with examples."""
    app.command(panel=panel, epilog=examples(*lines))(command)


add(
    *(BEGIN, new, "fedagent new my-model"),
    "fedagent new boiler --template sensor",
    "fedagent new thrifty --template policy",
)
start.mount(app, panel=AGENT)
add(
    *(AGENT, demo, "fedagent demo", "fedagent demo --policy cheapest --rounds 30"),
    "fedagent demo --agents 12 --edges 3",
    "fedagent demo --rounds 5 --json",
    "fedagent demo --recipe bas-digits",
    "fedagent demo --recipe fa-digits",
)
add(READ, status, "fedagent status", "fedagent status --json --data-dir /srv/coordinator")
add(READ, rounds, "fedagent rounds --last 5", "fedagent rounds --last 0 --json")
add(
    *(READ, why, "fedagent why kitchen", "fedagent why kitchen --round 12"),
    "fedagent why 3f2a --json --data-dir /srv/coordinator",
)
add(
    *(STUDY, replay, "fedagent replay fedagent-demo --policy cheapest --decisions"),
    "fedagent replay --check",
    "fedagent replay 3f2a --policy linucb --set alpha=0.5 --json",
)
app.add_group(enrolment.app, panel=READ)
add(READ, runs, "fedagent runs", "fedagent runs --json --data-dir /srv/coordinator")
app.add_group(ledger.app, panel=READ)
add(
    *(READ, opinions, "fedagent opinions", "fedagent opinions --round 12"),
    "fedagent opinions --client kitchen --last 0",
    "fedagent opinions --plot opinions.svg",
)
app.add_group(models.app, panel=READ)
add(
    *(USE, predict, "fedagent predict model.safetensors --stream csv:meter.csv"),
    "fedagent predict model.onnx --stream csv:new.csv,label=none --json",
    "fedagent predict model.onnx --stream 'mqtt://pi/home?features=a,b&label=y' --count 10",
)
app.add_group(task_app, panel=USE)
add(
    *(READ, report, "fedagent report"),
    "fedagent report /srv/fedagent/coordinator --out /var/www/run-7",
)
add(
    *(READ, export, "fedagent export --tensorboard runs", "fedagent export --mlflow mlruns"),
)
testbed_command.mount(app, panel=STUDY)
app.add_group(service.app, panel=MACHINE)
app.add_group(broker.app, panel=MACHINE)
add(
    *(MACHINE, backup, "fedagent backup /mnt/usb/fedagent-monday"),
    "fedagent backup /mnt/usb/fedagent-monday --data-dir /srv/coordinator --json",
)
add(
    *(MACHINE, restore, "fedagent restore /mnt/usb/fedagent-monday"),
    "fedagent restore /mnt/usb/fedagent-monday --accept-lost-history",
)
add(
    *(MACHINE, prune, "fedagent prune --keep-rounds 10000 --dry-run"),
    "fedagent prune --keep-days 90 --data-dir /srv/coordinator",
)
add(
    *(MACHINE, beliefs, "fedagent beliefs", "fedagent beliefs --name kitchen --last 100"),
    "fedagent beliefs --plot beliefs.svg",
)
add(
    *(MACHINE, doctor, "fedagent doctor", "fedagent doctor --json"),
    "FEDAGENT_HOME=/mnt/ssd fedagent doctor",
)


def run() -> None:
    """Run the command that the arguments name.

    Raises:
        CliError: It failed in a foreseen way.
    """
    try:
        code = app()
        sys.stdout.flush()
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
    except (BrokenPipeError, UnreadEnd):
        _flush_nothing()
        raise SystemExit(UNREAD) from None
    except OSError as error:
        if not is_disk_error(error):
            raise
        _flush_nothing()
        raise UsageError(f"cannot write: {error.strerror}", "free space on the disk") from error
    raise SystemExit(code if isinstance(code, int) else 0)


def _flush_nothing() -> None:
    """Leave nothing to be flushed at exit to where nothing can be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
