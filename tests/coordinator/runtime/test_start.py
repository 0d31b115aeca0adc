"""What keeps a coordinator from its start, said in words that name the hint."""

from pathlib import Path

import pytest

from fedagent_coordinator.errors import ModelLostError
from fedagent_coordinator.exits import EXIT_CODES
from fedagent_protocol.errors import ParameterError, UnknownNameError

from .harness import Site, recipe, toy_edges


def test_an_unknown_placement_is_refused_with_those_there_are(tmp_path: Path) -> None:
    site = Site(tmp_path, recipe("placement.name=moon"), [])
    with pytest.raises(UnknownNameError, match=r"no placement is named 'moon'.*coordinator"):
        site.open()


def test_a_parameter_that_a_placement_does_not_take_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path, recipe("placement.params.height=3"), [])
    with pytest.raises(ParameterError, match="height"):
        site.open()


def interrupted(folder: Path, at: str) -> Site:
    """Return the site of a run that was killed at a crash point."""
    given = recipe()
    site = Site(folder, given, toy_edges(given), kill_at=at)
    site._alive(site._start)
    for edge in site.edges:
        site._up(edge, edge.hello())
    site._beat()
    site.kernel.run(until=site.kernel.now + 30.0, stop=lambda: site.kills > 0)
    assert site.kills == 1
    return site


def model_file(site: Site) -> Path:
    site.open()
    digest = site.engine.models.digest
    site.close()
    return site.folder / "models" / digest


@pytest.mark.parametrize("damage", ["damaged", "missing"])
def test_a_lost_global_model_is_named_with_its_hint(tmp_path: Path, damage: str) -> None:
    site = interrupted(tmp_path, "committed")
    path = model_file(site)
    if damage == "damaged":
        data = bytearray(path.read_bytes())
        data[-5] ^= 0x40
        path.write_bytes(data)
    else:
        path.unlink()
    with pytest.raises(ModelLostError, match=rf"is {damage}; restore .*--new-run") as caught:
        site.open()
    assert next(code for kind, code in EXIT_CODES if isinstance(caught.value, kind)) == 33
    site.new_run = True
    site.open()
    site.close()


def test_the_first_model_is_made_again_from_the_seed(tmp_path: Path) -> None:
    site = interrupted(tmp_path, "reserved")
    path = model_file(site)
    whole = path.read_bytes()
    path.write_bytes(b"x" + whole[1:])
    site.open()
    site.close()
    assert path.read_bytes() == whole
