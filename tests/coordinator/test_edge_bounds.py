"""A compromised edge at the merge (H8, T10): a huge model, an invented weight, one against all."""

from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.core.effects import Merge
from fedagent_coordinator.merged_models import AGAINST, KEPT, merge_files
from fedagent_node.blobs import BlobStore
from fedagent_protocol.tensors import Manifest, decode_tensors, encode_tensors
from fedagent_task.aggregation.robust import registry

SIZE = 60
BASE = {"w": np.linspace(-1, 1, SIZE, dtype=np.float32)}
MANIFEST = Manifest.of(BASE)
AGREED = np.cos(np.arange(SIZE)).astype(np.float32)


class Site:
    """Models on a disk, merged one after the other."""

    def __init__(self, folder: Path, rule: str) -> None:
        self.blobs = BlobStore(folder)
        self.rule = registry.create(rule)
        self.base = self.blobs.put(encode_tensors(BASE))
        self.state, self.round = "", 0
        self.refused: dict[str, str] = {}

    def edge(self, place: int, times: float = 1.0) -> str:
        rng = np.random.default_rng((self.round, place))
        move = times * (AGREED + 0.3 * rng.normal(size=SIZE).astype(np.float32))
        return self.blobs.put(encode_tensors({"w": (self.now() + move).astype(np.float32)}))

    def now(self) -> np.ndarray:
        return decode_tensors(self.blobs.get(self.base), MANIFEST)["w"].astype(np.float64)

    def merge(self, digests: list[str]) -> float:
        """Return how far the model went, by what honest edges agree on."""
        self.round += 1
        parts = tuple(sorted((digest, 10.0) for digest in digests))
        merge = Merge(self.round, parts, 0, base=self.base, state=self.state)
        before = self.now()
        found = merge_files(self.blobs, MANIFEST, merge, rule=self.rule)
        self.base, self.state, self.refused = found.digest, found.state, dict(found.refused)
        return float(np.linalg.norm(self.now() - before) / np.linalg.norm(AGREED))


@pytest.mark.parametrize("rule", [name for name in registry.names() if name != "none"])
def test_one_of_five_edges_with_a_million_times_the_move_goes_no_farther(
    tmp_path: Path, rule: str
) -> None:
    site = Site(tmp_path, rule)
    for _ in range(3):
        far = site.merge([site.edge(0, 1e6), *(site.edge(place) for place in range(1, 5))])
        assert far < 1.5


def test_an_edge_alone_is_held_against_the_merges_before_also_by_another_process(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, "clipped-mean")
    for _ in range(9):
        digest = site.edge(0)
        site.merge([digest])
        # As it is, where nothing is too long.
        assert site.base == digest
    again = Site(tmp_path, "clipped-mean")
    again.base, again.state, again.round = site.base, site.state, site.round
    assert again.merge([again.edge(0, 1e6)]) < 2.5
    assert (again.blobs.get(again.state)).count(KEPT.encode()) == 1


def test_an_edge_against_the_others_is_left_out_and_named(tmp_path: Path) -> None:
    site = Site(tmp_path, "clipped-mean")
    liar = site.edge(0, -1.0)
    assert site.merge([liar, *(site.edge(place) for place in range(1, 6))]) > 0.9
    assert site.refused == {liar: AGAINST}
