"""The commands of `fedagent`, and how the program ends."""

import os
import sys

import click
from click.exceptions import ClickException, NoArgsIsHelpError

from fedagent_protocol.errors import is_disk_error

from .command_line import Group, Lazy
from .errors import UNREAD, UsageError
from .options import examples

COMMANDS = {
    name: Lazy(panel, place, about)
    for panel, commands in {
        "Begin": {
            "new": ("new:new", "Create a project that runs unchanged."),
            "demo": ("demo.command:demo", "Run a whole federation on this machine and watch it."),
            "doctor": ("doctor.command:doctor", "Check this machine: what works, how to fix it."),
        },
        "Run a role": {
            "agent": ("role.roles:agent", "Run this device as an agent: it trains on its stream."),
            "edge": ("role.roles:edge", "Run an edge: a broker for devices, and their average."),
            "coordinator": (
                "role.roles:coordinator",
                "Run the coordinator: who trains, who is paid.",
            ),
        },
        "": {"start": ("role.roles:agent", "")},
        "The site": {
            "devices": ("site.enrolment:app", "List, invite, accept and revoke devices and edges."),
            "broker": ("site.broker:broker", "Write what a shared broker needs of the site."),
        },
        "Read a run": {
            "status": ("read.status:status", "Show a run in a few lines, now or afterwards."),
            "why": ("read.why:why", "Explain why a device was or was not selected in a round."),
            "report": ("report.page:report", "Write a run as one HTML file and as JSON."),
            "opinions": ("read.opinions:opinions", "Show what clients think, or who volunteered."),
            "export": ("read.export:export", "Write a run's model, ledger or rounds for others."),
            "ledger": ("read.ledger:app", "Read and check the ledger."),
        },
        "Use a model": {
            "models": ("model.models:app", "List the models that a run has kept."),
            "predict": ("model.predict:predict", "Predict a stream's samples with a model."),
            "task": ("model.task:app", "Build a task from a PyTorch model."),
        },
        "Study policies": {
            "testbed": ("study.testbed:app", "Compare policies in virtual time."),
            "replay": ("study.replay:replay", "Decide a recorded run with another policy."),
        },
        "Maintain this machine": {
            "service": ("role.service:app", "Run a role as a systemd service."),
            "backup": ("backup:backup", "Back up a coordinator's data, even while it runs."),
            "restore": ("backup:restore", "Restore a backup as a coordinator's data."),
            "prune": ("prune:prune", "Drop inputs and decisions of old rounds, not the ledger."),
        },
    }.items()
    for name, (place, about) in commands.items()
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
        FedagentError: It failed in a foreseen way.
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
    except BrokenPipeError:
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
