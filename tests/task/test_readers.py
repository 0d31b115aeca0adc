"""Readers: what they return for good files, and one typed error for any others."""

import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedagent_task.errors import DatasetError
from fedagent_task.readers import DATA_VARIABLE, load
from fedagent_task.readers.binary import read_idx_array, read_npz
from fedagent_task.readers.text import read_csv, read_libsvm, read_libsvm_sparse, read_ratings


def test_the_digits_are_split_once_and_for_all() -> None:
    train, test = load("digits-train"), load("digits-test")
    assert (train.x.shape, test.x.shape) == ((1438, 64), (359, 64))
    assert train.x.dtype == np.uint8
    assert (int(train.x.min()), int(train.x.max())) == (0, 16)
    counts = np.bincount(test.y.astype(int))
    assert counts.min() >= 34
    assert counts.max() <= 37
    np.testing.assert_array_equal(test.y, load("digits-test").y)
    assert test.y[:12].tolist() == [1, 5, 7, 7, 3, 6, 9, 9, 5, 1, 2, 1]


def _idx(array: "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]") -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


def test_idx_reads_images_and_their_labels(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    images = tmp_path / "t10k-images-idx3-ubyte.gz"
    images.write_bytes(gzip.compress(_idx(x)))
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(
        gzip.compress(_idx(np.array([4, 9], np.uint8)))
    )
    data = load(str(images))
    np.testing.assert_array_equal(data.x, x.reshape(2, 12))
    assert data.y.tolist() == [4, 9]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\x07\x01\0\0\0\x01a",
        b"\0\0\x08\x01\0\0\0\x02a",
        b"\0\0\x08\x04" + b"\xff" * 16,
        b"\x1f\x8bgarbage",
        gzip.compress(b"x" * 100)[:-20],
    ],
)
def test_damaged_idx_is_a_typed_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(DatasetError) as caught:
        read_idx_array(path)
    assert caught.value.path == str(path)
    assert caught.value.hint


def test_libsvm_is_the_same_dense_and_sparse(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("+1 1:0.5 4:2\n-1 2:1 # a comment\n\n+1\n")
    (x, y), dense = read_libsvm_sparse(path), read_libsvm(path)
    assert x.width == 4
    assert x.indptr.tolist() == [0, 2, 3, 3]
    np.testing.assert_array_equal(dense.x, [[0.5, 0, 0, 2], [0, 1, 0, 0], [0, 0, 0, 0]])
    assert dense.y.tolist() == y.tolist() == [1, 0, 1]
    assert read_libsvm(path, features=6).x.shape == (3, 6)


@pytest.mark.parametrize("line", ["x 1:2", "1 2:1 2:1", "1 a:1", "1 3"])
def test_a_malformed_libsvm_line_is_named_by_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(f"1 1:1\n{line}\n")
    with pytest.raises(DatasetError, match="line 2"):
        read_libsvm(path)


def test_sizes_are_limited_before_arrays_are_made(tmp_path: Path) -> None:
    wide = tmp_path / "wide.txt"
    wide.write_text("1 90000000:1\n" * 200)
    with pytest.raises(DatasetError, match="limit"):
        read_libsvm(wide)
    with pytest.raises(DatasetError, match="only 10 are expected; raise width"):
        read_libsvm(wide, features=10)
    bomb = tmp_path / "bomb.csv.gz"
    bomb.write_bytes(gzip.compress(b"1,2\n" * 1_000_000))
    with pytest.raises(DatasetError, match="larger than 1000 bytes"):
        read_csv(bomb, limit=1000)
    with (tmp_path / "large.csv").open("wb") as file:
        file.truncate(1 << 28)
    tracemalloc.start()
    with pytest.raises(DatasetError, match="larger than"):
        read_csv(tmp_path / "large.csv", limit=1 << 27)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    archive = tmp_path / "bomb.npz"
    np.savez_compressed(archive, x=np.zeros((1000, 1000)), y=np.zeros(1000))
    with pytest.raises(DatasetError, match="limit"):
        read_npz(archive, limit=100_000)


def test_the_last_column_of_a_csv_is_its_label(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("t,kind,h\n1.5,2,3\n4,5,6\n")
    data = read_csv(path)
    assert data.y.tolist() == [3, 6]
    np.testing.assert_array_equal(data.x, [[1.5, 2], [4, 5]])
    path.write_bytes(b"\xef\xbb\xbf1,2\r\n3,4\r\n")  # as a spreadsheet writes it
    assert read_csv(path).y.tolist() == [2, 4]
    for content, says in (
        ("", "has no sample"),
        ("a,b\n", "has no sample"),
        ("1\n2\n", "columns"),
        ("1,2\n3\n", "line 2 has 1 columns, not 2"),
        ("a,b,c\n1,2\n3,4\n", "line 2 has 2 columns, not 3"),
        ("1,2\n3,x\n", "line 2, column 1, is not a number"),
        ("t,kind\n1,2\n3,\n", "line 3, column 'kind', is not a number"),
        ("1,2\n1_0,2\n", "line 2, column 0, is not a number"),
        ("1 2\n3 4\n", "one column only; separate columns by commas, semicolons, tabs"),
        ("t,kind\n1,5,0\n", "line 2 has 3 columns, not 2; .*with a decimal point"),
        ('"1,5","0"\n"2,5","1"\n', "line 1, column 0, is not a number; .*decimal point"),
        ("t;kind\n1,5;0\n1.234;1\n", "line 3, column 't', is not a number"),
        ("time,t,kind\n12:30,1,0\n", "line 2, column 'time', is not a number"),
        ('1,"2\n3,4\n', "line 1 "),
        ("My logger,,\nt,h,kind\n1,2,0\n", "one column with a name only"),
        ("\0t\0,\0k\0\n\0" + "1\0,\0" + "2", "is UTF-16 or no text; have it written as UTF-8"),
    ):
        path.write_text(content)
        with pytest.raises(DatasetError, match=says):
            read_csv(path)


@pytest.mark.parametrize(
    "content",
    [
        "t,h,kind\n1.5,2,0\n3,4.5,1\n",
        '"t","h","kind"\n"1.5","2","0"\n"3","4.5","1"\n',
        "t;h;kind\n1,5;2;0\n3;4,5;1\n",
        "t\th\tkind\n1,5\t2\t0\n3\t4,5\t1\n",
        "\ufeffsep=;\r\nt;h;kind\r\n1.5;2;off\r\n3;4.5;ON\r\n",
        ",t,h,kind\n0,1.5,2,0\n1,3,4.5,1\n",
        "t,h,kind,\n1.5,2,0,\n3,4.5,1,\n",
        "# t,h,kind\n\n1.5,2,0\n\n3,4.5,1\n",
        "t,h,kind\n°C,%,\n1.5,2,0\n3,4.5,1\n",
        "1.5,2,0\n3,4.5,1\n",
        "0,1,2\n1.5,2,0\n3,4.5,1\n",
        "0,1,kind\n1.5,2,0\n3,4.5,1\n",
    ],
    ids=str.split,
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
def test_a_csv_is_read_as_spreadsheets_and_loggers_write_it(
    tmp_path: Path, content: str, encoding: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content.removeprefix("\ufeff" * (encoding != "utf-8")).encode(encoding))
    data = load(str(path))
    assert data.x.tolist() == [[1.5, 2], [3, 4.5]]
    assert data.y.tolist() == [0, 1]
    assert data.names in ((), ("t", "h"), ("0", "1"))
    if data.names == ("t", "h"):
        assert data.ordered(["h", "t"]).x.tolist() == [[2, 1.5], [4.5, 3]]
        assert data.ordered(["h", "u"]) is data


def test_npz_never_unpickles(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([[{}]], object), y=np.array([1]))
    with pytest.raises(DatasetError):
        load(str(path))
    np.savez(path, x=np.zeros((2, 2, 2), np.int16), y=np.array([0.5, 1]))
    assert load(str(path)).x.shape == (2, 4)
    np.savez(path, x=np.zeros((2, 2)), y=np.zeros(3))
    with pytest.raises(DatasetError):
        load(str(path))


def test_ratings_keep_users_and_items(tmp_path: Path) -> None:
    path = tmp_path / "u.data"
    path.write_text("196\t242\t3\t881250949\n186\t302\t4\t891717742\n")
    data = load(str(path))
    assert data.x.tolist() == [[196, 242], [186, 302]]
    assert data.y.tolist() == [3, 4]
    path.write_text("196\t242\n")
    with pytest.raises(
        DatasetError, match="line 1 has 2 columns, not 4; separate all lines by tabs"
    ):
        read_ratings(path)


def test_relative_paths_are_sought_in_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.csv").write_text("1,0\n2,1\n")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert len(load("own.csv")) == 2
    with pytest.raises(DatasetError, match="digits-train"):
        load("other.csv")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["a.npz", "a.csv", "a-images-idx3", "u.data", "a.txt", "a.txt.gz"]),
    content=st.one_of(
        st.binary(max_size=300), st.text("0123456789 .,:+-\ne", max_size=100).map(str.encode)
    ),
)
def test_any_file_is_a_dataset_or_a_typed_error(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    try:
        data = load(str(path), limit=1_000_000)
    except DatasetError as error:
        assert error.reason
    else:
        assert len(data.x) == len(data.y)
