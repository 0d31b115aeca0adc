"""The books of a run as columns, frames and a page."""

import fedagent
from fedagent import Run


def test_its_columns_are_one_table_each(run: Run) -> None:
    data = fedagent.read(run)
    for table in (data.rounds, data.devices, data.orders, data.ledger):
        assert len({len(column) for column in table.values()}) == 1
    assert data.rounds["paid"] == [3.0] * 4
    grants = [a for a, kind in zip(data.ledger["amount"], data.ledger["kind"], strict=True)
              if kind == "settle"]  # fmt: skip
    assert sum(float(str(one)) for one in grants) == 12.0
    assert fedagent.read(run.folder) == fedagent.read(str(run.data_dir)) == data
    assert data.rounds["accuracy"][-1] == run.metrics["accuracy"]
    assert len(data.orders["agent"]) == 12


def test_the_report_is_one_page(run: Run) -> None:
    assert "accuracy" in run.report().read_text()
