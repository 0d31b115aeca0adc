"""The books of a run as columns, frames and a page."""

import pytest

import fedagent
from fedagent import MissingError, Run
from fedagent.run_data import Columns
from fedagent_cli import extras


def test_its_columns_are_one_table_each(run: Run) -> None:
    data = fedagent.read(run)
    for table in (data.rounds, data.devices, data.orders, data.ledger):
        assert {len(column) for column in table.values()} == {table.rows}
    assert data.rounds["paid"] == [3.0] * 4
    grants = [a for a, kind in zip(data.ledger["amount"], data.ledger["kind"], strict=True)
              if kind == "settle"]  # fmt: skip
    assert sum(float(str(one)) for one in grants) == 12.0
    assert fedagent.read(run.folder) == fedagent.read(str(run.data_dir)) == data
    frames = data.to_pandas()
    assert frames["rounds"]["accuracy"].iloc[-1] == run.metrics["accuracy"]
    assert len(frames["orders"]) == 12


def test_without_pandas_a_frame_is_one_line_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    with pytest.raises(MissingError, match=r"the pandas package is not .*; .*pip install pandas"):
        Columns({"round": [1]}).to_pandas()


def test_the_report_is_one_page(run: Run) -> None:
    assert "accuracy" in run.report().read_text()
