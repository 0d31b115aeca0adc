"""`fedagent why`: why a device was, or was not, selected in a round."""

import time
from pathlib import Path

import click
import msgspec

from fedagent_cli import options
from fedagent_cli.command_line import Number
from fedagent_cli.errors import MissingError
from fedagent_cli.output import echo, emit, table
from fedagent_cli.read.opinions import agent_named
from fedagent_cli.read.runs import is_running, open_run
from fedagent_coordinator.books.read import Reader
from fedagent_coordinator.errors import UnknownRoundError
from fedagent_coordinator.explanation.account import Explanation
from fedagent_coordinator.explanation.binding import change_text
from fedagent_coordinator.explanation.explain import explain
from fedagent_coordinator.picture.devices import devices_of

MOST_ORDERS = 8
"""Orders of a device that are listed."""
STATES = {
    "selected": "was selected",
    "not_selected": "was not selected",
    "unaffordable": "was too expensive",
    "unavailable": "was not available",
    "not_visible": "was not reported by any edge",
    "unknown_device": "is not known",
}


@click.command(
    epilog=options.examples(
        "fedagent why kitchen",
        "fedagent why kitchen --round 12",
        "fedagent why 3f2a --json --data-dir /srv/coordinator",
    )
)
@click.argument("device", metavar="DEVICE")
@click.option(
    "--round",
    "round_",
    type=Number(int, min=1),
    show_default="the newest",
    help="Number of the round.",
)
@options.coordinator_data
@options.run_id
@options.as_json
def why(
    device: str, *, round_: int | None, data_dir: Path | None, run: str | None, as_json: bool
) -> None:
    """Explain why a device was or was not selected in a round, and what would have changed that.

    DEVICE is its name, or the start of its id. The round is decided again with what the policy
    knew, so every change shown would really have selected the device.
    """
    with open_run(Reader, data_dir, run) as (reader, chosen):
        cards = {one.id: one for one in devices_of(reader, chosen)}
        agent = agent_named({ident: one.name for ident, one in cards.items()}, device)
        if not (last := reader.last_round(chosen.run_id)):
            raise MissingError("no round has been decided yet", "see `fedagent status`")
        try:
            said = explain(reader, agent, round_, run_id=chosen.run_id)
        except UnknownRoundError as error:
            hint = error.hint or f"the newest is round {last}"
            raise MissingError(error.sentence, hint) from error
        edges = reader.edges(chosen.run_id)
        newest = round_ is None and is_running(reader.folder)
    changes = [change_text(change, edges) for change in said.nearest_change]
    card, away_s = cards[agent], None
    if newest and card.online is False and card.seen_ms is not None:  # no edge has it
        away_s = max(0, round(time.time() - card.seen_ms / 1000))
    if as_json:
        emit({**msgspec.to_builtins(said), "changes": changes, "away_s": away_s})
        return
    _print(said, changes, away_s)


def _print(said: Explanation, changes: list[str], away_s: int | None) -> None:
    echo(f"round {said.round}: device {said.name} {STATES[said.state]}, policy {said.policy}")
    if away_s is not None:
        echo(f"  it is offline: it has not been connected to any edge for {away_s} s")
    for reason in said.reasons:
        echo(f"  {reason}")
    if said.propensity is not None:
        echo(f"  the run explores: the probability that it was ordered was {said.propensity:.3g}")
    if changes:
        echo(f"what would have selected it{', each alone' if changes[1:] else ''}")
    for change in changes:
        echo(f"  {change}")
    if not said.solved and said.state in {"not_selected", "unaffordable"}:
        echo(
            "  the data kept of the round does not suffice to decide it again, so no change can "
            "be named"
        )
    if said.scores:
        echo()
        rows = [(one.name, one.device, one.last_chosen) for one in said.scores]
        table(("what the policy knew", "device", "last chosen"), rows)
    if said.orders:
        echo()
        table(
            ("round", "ended", "seconds", "reason"),
            [(one.round, one.status, one.tau_s, one.reason) for one in said.orders[:MOST_ORDERS]],
            unless={"reason": ""},
        )
