"""A compromised edge at the merge (H8, T10): too long, too short, against the others, or against
what the held-out samples say."""

from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.core.effects import Merge, MergePart
from fedagent_coordinator.merged_models import AGAINST, HARM, USUAL, Judge, merge_files
from fedagent_node.blobs import BlobStore
from fedagent_protocol.tensors import Manifest, decode_tensors, encode_tensors
from fedagent_task.aggregation import Arrays
from fedagent_task.aggregation.alignment import Floats
from fedagent_task.aggregation.edges import LARGEST_LOSS, PARTS
from fedagent_task.aggregation.robust import registry

SIZE = 60
BASE = {"w": np.linspace(-1, 1, SIZE, dtype=np.float32)}
MANIFEST = Manifest.of(BASE)
AGREED = np.cos(np.arange(SIZE)).astype(np.float32)


def judge(tensors: Arrays) -> Floats:
    """The distance to where honest edges go, on parts that differ as samples do."""
    rng = np.random.default_rng(5)
    noise = 0.1 * rng.normal(size=(PARTS, SIZE))
    apart = tensors["w"].astype(np.float64) - BASE["w"] - 10.0 * AGREED - noise
    return np.asarray((apart * apart).mean(axis=1), dtype=np.float64)


class Site:
    """Models on a disk, merged one after the other; edges are called by their places."""

    def __init__(
        self, folder: Path, rule: str = "clipped-mean", judge: Judge | None = None
    ) -> None:
        self.blobs = BlobStore(folder)
        self.rule, self.judge = registry.create(rule), judge
        self.base = self.blobs.put(encode_tensors(BASE))
        self.state, self.round = "", 0
        self.refused: dict[str, str] = {}
        self.farthest = ""

    def edge(self, place: int, times: float = 1.0) -> str:
        rng = np.random.default_rng((self.round, place))
        move = times * (AGREED + 0.3 * rng.normal(size=SIZE).astype(np.float32))
        return self.blobs.put(encode_tensors({"w": (self.now() + move).astype(np.float32)}))

    def now(self) -> np.ndarray:
        return decode_tensors(self.blobs.get(self.base), MANIFEST)["w"].astype(np.float64)

    def merge(self, *times: float, told: float = 0.0) -> float:
        """Return how far the model went to where honest edges go, in their moves.

        Edges go so many `times` as far as an honest one.
        """
        self.round += 1
        parts = (MergePart(self.edge(i, by), 10.0, 10.0, str(i)) for i, by in enumerate(times))
        norm = told * float(np.linalg.norm(AGREED))
        merge = Merge(self.round, tuple(sorted(parts)), 0, norm, self.base, self.state)
        before = self.now()
        found = merge_files(self.blobs, MANIFEST, merge, rule=self.rule, judge=self.judge)
        self.base, self.state = found.digest or self.base, found.state or self.state
        self.refused, self.farthest = dict(found.refused), found.farthest
        return float((self.now() - before) @ AGREED / (AGREED @ AGREED))


@pytest.mark.parametrize("rule", [name for name in registry.names() if name != "none"])
def test_one_of_five_edges_with_a_million_times_the_move_goes_no_farther(
    tmp_path: Path, rule: str
) -> None:
    site = Site(tmp_path, rule)
    for _ in range(3):
        assert abs(site.merge(1e6, 1.0, 1.0, 1.0, 1.0)) < 1.5
        assert site.farthest == "0"


def test_an_edge_alone_is_held_against_the_merges_before_also_by_another_process(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path)
    for _ in range(9):
        site.merge(1.0)
    again = Site(tmp_path)
    again.base, again.state, again.round = site.base, site.state, site.round
    assert again.merge(1e6) < 2.5
    assert (again.blobs.get(again.state)).count(USUAL.encode()) == 1


def test_an_edge_that_moves_as_usual_is_taken_as_it_is(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.round = 1
    digest = site.edge(0)
    site.round = 0
    site.merge(1.0)
    assert site.base == digest


@pytest.mark.parametrize("others", [(), (1.0,)])
def test_an_edge_that_was_left_out_stays_so_alone_and_is_back_once_it_is_honest(
    tmp_path: Path, others: tuple[float, ...]
) -> None:
    site = Site(tmp_path, judge=judge)
    site.merge(-1.5, 1.0, told=1.0)
    assert site.refused == {"0": HARM}
    assert site.merge(-1.5, told=1.0) == 0.0
    assert any(site.merge(1.0, *others, told=1.0) and not site.refused for _ in range(12))


def knows_nothing(_: Arrays) -> Floats:
    return np.full(PARTS, LARGEST_LOSS)


@pytest.mark.parametrize("judge", [None, knows_nothing])
def test_three_directions_tell_who_is_against(tmp_path: Path, judge: Judge | None) -> None:
    site = Site(tmp_path, judge=judge)
    assert site.merge(-1.5, 1.0, 1.0) > 0.9
    assert site.refused == {"0": AGAINST}
    assert site.merge(1.0, 1.0, 1.0) > 0.9
    assert not site.refused


def test_of_two_edges_without_held_out_samples_neither_runs_away_nor_freezes_the_run(
    tmp_path: Path,
) -> None:
    for lie in (1e-6, -1e6):
        site = Site(tmp_path)
        went = [site.merge(lie, 1.0, told=1.0) for _ in range(20)]
        assert all(0.45 < abs(far) < 1.0 if lie > 0 else abs(far) < 0.5 for far in went)


def test_what_is_usual_changes_slowly(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.merge(1.0, told=1.0)
    far = [site.merge(100.0, told=100.0) for _ in range(3)]
    assert far == pytest.approx([1.5 * 1.1**n for n in (1, 2, 3)], rel=0.15)


def test_nothing_is_left_to_lose_where_the_best_model_loses_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path, judge=lambda _: np.zeros(PARTS))
    for _ in range(3):
        assert site.merge(1.0, 1.0) > 0
    assert not site.refused
