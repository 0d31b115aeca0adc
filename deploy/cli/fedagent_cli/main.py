"""The commands of `fedagent`, and how the program ends."""

import os
import sys

import click
from click.exceptions import ClickException, NoArgsIsHelpError

from fedagent_node.data_dir import is_disk_error
from fedagent_protocol.extras import how_to_add

from .command_line import Group, Lazy
from .errors import UNREAD, MissingError, UnreadEnd, UsageError
from .options import examples

BEGIN = "Begin"
ROLE = "Run a role"
SITE = "The site"
READ = "Read a run"
USE = "Use a model"
STUDY = "Study policies"
MACHINE = "Maintain this machine"
COMMANDS = {
    "new": Lazy(
        BEGIN, "new:new", "Create a project that runs unchanged: code, recipe, README and one test."
    ),
    "demo": Lazy(
        BEGIN, "demo.command:demo", "Run a whole federation on this machine and watch it."
    ),
    "doctor": Lazy(
        BEGIN, "doctor.command:doctor", "Check this machine: what works, and how to fix the rest."
    ),
    "agent": Lazy(
        ROLE, "role.start:agent", "Run this device as an agent: it trains on its own stream."
    ),
    "start": Lazy("", "role.start:agent", ""),
    "edge": Lazy(
        ROLE,
        "role.start:edge",
        "Run an edge aggregator: a broker for the devices near it, and their average.",
    ),
    "coordinator": Lazy(
        ROLE,
        "role.start:coordinator",
        "Run the coordinator: it decides who trains where, and pays for it.",
    ),
    "devices": Lazy(
        SITE, "site.enrolment:app", "List, invite, accept and revoke devices and edges."
    ),
    "broker": Lazy(
        SITE, "site.broker:broker", "Write key, certificate and access list of a shared broker."
    ),
    "status": Lazy(
        READ,
        "read.status:status",
        "Show the state of a run in a few lines, during the run or afterwards.",
    ),
    "why": Lazy(READ, "read.why:why", "Explain why a device was or was not selected in a round."),
    "report": Lazy(READ, "report.command:report", "Write a run as one HTML file and as JSON."),
    "opinions": Lazy(
        READ,
        "read.opinions:opinions",
        "Show what clients think of the models, or who volunteered to train.",
    ),
    "export": Lazy(
        READ, "read.export:export", "Write a run's model, ledger or rounds for other tools."
    ),
    "ledger": Lazy(READ, "read.ledger:app", "Read and check the ledger."),
    "models": Lazy(USE, "model.models:app", "List the models that a run has kept."),
    "predict": Lazy(
        USE, "model.predict:predict", "Predict a stream's samples with an exported model."
    ),
    "task": Lazy(USE, "model.task:app", "Build a task from a PyTorch model."),
    "testbed": Lazy(STUDY, "study.testbed:app", "Compare policies in virtual time."),
    "replay": Lazy(
        STUDY, "study.replay:replay", "Decide the rounds of a recorded run with another policy."
    ),
    "service": Lazy(MACHINE, "role.service:app", "Run a role as a systemd service."),
    "backup": Lazy(
        MACHINE, "backup:backup", "Back up a coordinator's data directory, even while it runs."
    ),
    "restore": Lazy(
        MACHINE, "backup:restore", "Restore a backup as a coordinator's data directory."
    ),
    "prune": Lazy(
        MACHINE,
        "prune:prune",
        "Drop the inputs and decisions of old rounds; the ledger stays whole.",
    ),
}
app = Group(
    "fedagent",
    help="Federated learning on real edge hardware.",
    lazy=COMMANDS,
    context_settings={"max_content_width": 100, "show_default": True},
    epilog=examples(
        "fedagent demo",
        "fedagent coordinator --recipe digits",
        "fedagent edge",
        "fedagent agent --stream digits",
        "fedagent doctor",
    ),
)
click.version_option(
    package_name="fedagent", message="fedagent %(version)s", help="Print the version."
)(app)


def run() -> None:
    """Run the command that the arguments name.

    Raises:
        CliError: It failed in a foreseen way.
    """
    try:
        code = app.main(prog_name="fedagent", standalone_mode=False)
        sys.stdout.flush()
    except NoArgsIsHelpError as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    except ClickException as error:
        problem = " ".join(error.format_message().split()).removesuffix(".")
        raise UsageError(problem, "see --help") from error
    except ModuleNotFoundError as error:
        if error.name != "rich":
            raise
        raise MissingError(
            "the rich package is not installed", how_to_add("coordinator")
        ) from error
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
