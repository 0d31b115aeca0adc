"""A CSV file that grows, is cut, is replaced, and has bad lines."""

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedagent_agent.streams import csv_tail
from fedagent_agent.streams.base import Stream
from fedagent_agent.streams.kinds import Csv
from fedagent_agent.streams.spec import StreamError
from fedagent_task.recipe.spec import DataSpec

from .support import dense


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def _open(
    path: Path, offset: int = 0, mark: str = "", labels: tuple[str, ...] = (), **keys: object
) -> Stream:
    spec = Csv(path=str(path), **keys)  # type: ignore[arg-type] # by test
    stream = spec.create(seed=0, data=DataSpec(labels=labels), offset=offset, mark=mark)
    stream.open(0.0)
    return stream


def _taken(stream: Stream) -> list[list[float]]:
    samples = stream.take(0.0)
    return [[*x, y] for x, y in zip(dense(samples).tolist(), samples.y.tolist(), strict=True)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "sensor.csv"
    path.write_text("t,h,kind\n1,2,0\n")
    return path


def test_lines_come_once_and_only_when_whole(path: Path) -> None:
    stream = _open(path)
    assert _taken(stream) == [[1, 2, 0]]
    _append(path, "3,4,1\n5,6")
    assert _taken(stream) == [[3, 4, 1]]
    assert _taken(stream) == []
    _append(path, ",1\r\n\n")
    assert _taken(stream) == [[5, 6, 1]]
    assert not sum(stream.counters.values())
    stream.close()


def test_columns_are_chosen_by_name_or_place(path: Path) -> None:
    for keys, row in (
        ({"label": "first"}, [2, 0, 1]),
        ({"label": "1"}, [1, 0, 2]),
        ({"label": "kind", "features": ("h",)}, [2, 0]),
    ):
        stream = _open(path, **keys)
        assert _taken(stream) == [row]
        stream.close()
    with pytest.raises(StreamError, match="no column 'x'"):
        _open(path, label="x")
    with pytest.raises(StreamError, match="no column 'z'"):
        _open(path, features=("z",))
    path.write_text("t,t,kind\n1,2,0\n")
    with pytest.raises(StreamError, match="2 columns 't'; have the file's first line name each"):
        _open(path, features=("t",))


def test_a_file_without_header_starts_with_a_sample(path: Path) -> None:
    path.write_text("1,2,cat\n3,4,dog\n")
    stream = _open(path, labels=("cat", "dog"))
    assert _taken(stream) == [[1, 2, 0], [3, 4, 1]]
    stream.close()


@pytest.mark.parametrize(
    ("names", "said", "labels"),
    [
        (("1", "2"), "1 2 2.0 0", [0, 1, 1]),
        (("ON", "OFF"), "ON off true 1", [0, 1, 0, 0]),
        ((), "cat " * 20, "no line so far is a sample: column 'kind' is no label of the task"),
    ],
)
def test_labels_that_are_named_are_names_also_where_they_are_numbers(
    path: Path, names: tuple[str, ...], said: str, labels: list[float] | str
) -> None:
    path.write_text("t,kind\n" + "".join(f"0,{label}\n" for label in said.split()))
    stream = _open(path, labels=names)
    if isinstance(labels, str):
        with pytest.raises(StreamError, match=labels):
            _taken(stream)
    else:
        assert [label for _, label in _taken(stream)] == labels
    stream.close()


def test_bad_lines_are_counted_by_reason_and_never_logged(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    stream = _open(path)
    with path.open("ab") as file:
        file.write(b'1,2\n1,x,0\n1,nan,0\n"1,2,0\n1,2,secret\n1,2,\xff\n7,8,1\n')
    assert _taken(stream) == [[1, 2, 0], [7, 8, 1]]
    assert dict(stream.counters) == {
        "bad_columns": 2,
        "bad_number": 1,
        "bad_not_finite": 1,
        "bad_label": 2,
        "dropped": 0,
    }
    assert "secret" not in caplog.text
    stream.close()


def test_a_rotated_file_is_read_to_its_end_first(path: Path) -> None:
    stream = _open(path)
    _taken(stream)
    _append(path, "3,4,1\n")
    path.rename(path.with_suffix(".1"))
    assert _taken(stream) == [[3, 4, 1]]  # the new file is not there yet
    _append(path.with_suffix(".1"), "5,6,1\n")
    path.write_text("t,h,kind\n7,8,0\n")
    assert _taken(stream) == [[5, 6, 1], [7, 8, 0]]
    assert stream.counters["rotated"] == 1
    stream.close()


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ("h,t,kind\n5,6,1\n", [[6, 5, 1]]),
        ("x,t,kind,h\n0,6,1,5\n", [[6, 5, 1]]),
        ("\ufeffh;t;kind\n5,5;6;1\n", [[6, 5.5, 1]]),
        ("6,5,1\n7,8,0\n", [[6, 5, 1], [7, 8, 0]]),
        ("t,h,kind\n6,5,1\nt,h,kind\n7,8,0\n", [[6, 5, 1], [7, 8, 0]]),
        ("t,h,kind\n6,5,1\nkind,h,t\n0,8,7\n", [[6, 5, 1], [7, 8, 0]]),
        ("t,h,kind\n6,5,1\n\ufeffh;x;kind;t\n\n8;0;0;7\n", [[6, 5, 1], [7, 8, 0]]),
        ("t,p,kind\n6,5,1\n", "no column 'h'"),
        ("t,h,sort\n6,5,1\n", "no column 'kind'"),
        ("t,h,kind\n°F,%,\n6,5,1\n", "had other columns before; now they are 't' in °F, 'h' in %"),
        ("6,5\n", "no column 't'"),
        ("time,t,h,kind\n1,6,five,1\n", "line 2, column 'h', is not a number"),
        ("t,h,kind\n6,5,1\nt,kind\n5,1\n", [[6, 5, 1]]),
    ],
)
@pytest.mark.parametrize("how", ["rotated", "truncated", "away"])
def test_what_first_lines_say_is_learnt_again_of_another_file(
    path: Path, how: str, content: str, rows: list[list[float]] | str
) -> None:
    path.write_text("t,h,kind\n" + "1,2,0\n" * (2 if how == "rotated" else 20))
    keys: dict[str, Any] = {"label": "kind", "features": ("t", "h")}
    stream = _open(path, **keys)
    assert _taken(stream)[-1] == [1, 2, 0]
    if how != "truncated":
        path.rename(path.with_suffix(".1"))
    path.write_bytes((content + "\n" * 130 * (how == "away")).encode())
    if how == "away":
        stream.close()
        if isinstance(rows, str) or content[0].isdigit():
            with pytest.raises(StreamError, match=rows if isinstance(rows, str) else "no column"):
                _open(path, offset=stream.offset, mark=stream.mark, **keys)
            return
        stream = _open(path, offset=stream.offset, mark=stream.mark, **keys)
    if isinstance(rows, str):
        for _ in range(2):  # it is said again, until it is mended
            with pytest.raises(StreamError, match=rows):
                _taken(stream)
        path.write_text("t,h,kind\n6,5,1\n")
        assert _taken(stream) == [[6, 5, 1]]
    else:
        assert _taken(stream) == rows
        assert stream.counters["rotated" if how != "truncated" else how] == 1
        assert not sum(n for name, n in stream.counters.items() if name[:4] == "bad_")
    stream.close()


def test_names_in_the_middle_hold_behind_them(path: Path) -> None:
    _append(path, "h,kind,t\n")
    keys: dict[str, Any] = {"label": "kind", "features": ("t", "h")}
    stream = _open(path, **keys)
    assert _taken(stream) == [[1, 2, 0]]
    stream.close()
    _append(path, "4,1,3\n")
    with pytest.raises(StreamError, match="had other columns before"):
        _open(path, offset=stream.offset, mark=stream.mark)
    again = _open(path, offset=stream.offset, mark=stream.mark, **keys)
    assert _taken(again) == [[3, 4, 1]]
    _append(path, "kind,h,t\n°C,%,\n0,6,5\n")
    for _ in range(2):
        with pytest.raises(StreamError, match="now they are 't', 'h' in %, 'kind' in °C"):
            _taken(again)
    again.close()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff\xfet\0,\0h\0\n\0", "UTF-8"),
        (b"t h kind\n1 2 0\n", "line 1 has one column only; separate columns by commas"),
        (b"time,h,kind\n12:30,2,0\n12:31,2,0\n", "line 2, column 'time', is not a number"),
        (b"t,h,kind\n1,5,2,5,0\n", "line 2 has 5 columns, not 3"),
        (b't,h,kind\n"1,2,0\n', "line 2 leaves a quote open"),
        (b'"t\n(C)",h,kind\n1,2,0\n', "line 1 leaves a quote open"),
        (b"t,h,kind\r1,2,0\r", "no complete line yet; .* with a line feed"),
    ],
)
def test_a_file_that_can_give_no_sample_is_refused_at_the_start(
    path: Path, content: bytes, says: str
) -> None:
    path.write_bytes(content)
    with pytest.raises(StreamError, match=says):
        _open(path)
    # The same, where it comes after the start.
    head, _, rest = content.partition(b"\n")
    if says[:6] == "line 2":
        path.write_bytes(head + b"\n")
        stream = _open(path)
        path.write_bytes(head + b"\n" + 20 * rest)
        with pytest.raises(StreamError, match="no line so far is a sample"):
            _taken(stream)
        stream.close()


def test_a_resumed_stream_goes_on_where_it_was(path: Path) -> None:
    stream = _open(path)
    _taken(stream)
    stream.close()
    _append(path, "3,4,1\n")
    again = _open(path, offset=stream.offset, mark=stream.mark)
    assert _taken(again) == [[3, 4, 1]]
    again.close()
    shrunk = _open(path, offset=10_000)
    assert len(_taken(shrunk)) == 2
    shrunk.close()


def test_memory_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_tail, "MAX_BACKLOG_BYTES", 6000)
    monkeypatch.setattr(csv_tail, "MAX_LINE_BYTES", 1000)
    stream = _open(path, buffer=3)
    _append(path, "".join(f"{i},0,0\n" for i in range(10)))
    assert [row[0] for row in _taken(stream)] == [7, 8, 9]
    assert stream.counters["dropped"] == 8
    _append(path, "1,2,0\n" * 1100)
    assert len(_taken(stream)) == 3
    assert stream.counters["skipped_bytes"] > 0
    _append(path, "x" * 1001)
    assert _taken(stream) == []
    _append(path, "rest of it\n4,4,1\n")
    assert _taken(stream) == [[4, 4, 1]]
    assert stream.counters["bad_too_long"] == 1
    stream.close()


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=15
)
@given(st.lists(st.one_of(st.just(b"1,2,0\n"), st.binary(max_size=20)), max_size=8))
def test_whatever_is_appended_good_lines_come_through(tmp_path: Path, pieces: list[bytes]) -> None:
    path = tmp_path / "any.csv"
    path.write_bytes(b"a,b,c\n")
    stream = _open(path)
    for piece in pieces:
        with path.open("ab") as file:
            file.write(piece)
        _taken(stream)
    with path.open("ab") as file:
        file.write(b"\n5,5,1\n")
    assert _taken(stream)[-1] == [5, 5, 1]
    stream.close()
