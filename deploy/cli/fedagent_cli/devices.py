"""`fedagent devices`: every agent of a run."""

from dataclasses import asdict

from . import options
from .output import credits_text, emit, table


def devices(
    *,
    data_dir: options.CoordinatorData = None,
    run: options.RunId = None,
    as_json: options.AsJson = False,
) -> None:
    """Show every agent of the run: how often ordered, in time, used, and paid."""
    from .runs import open_run  # noqa: PLC0415 - heavy imports

    with open_run(data_dir, run) as (reader, chosen):
        found = reader.devices(chosen.run_id)
    if as_json:
        emit({"run": chosen.run_id, "devices": [asdict(row) for row in found]})
        return
    table(
        ("agent", "name", "ordered", "in time", "used", "paid", "last round", "last outcome"),
        (
            (
                row.agent,
                row.label or "-",
                row.selected,
                row.in_time,
                row.used,
                credits_text(row.paid_micro),
                row.last_round,
                row.last_status,
            )
            for row in found
        ),
    )
