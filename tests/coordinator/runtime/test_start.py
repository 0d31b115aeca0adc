"""What keeps a coordinator from its start, said in words that name the mend."""

from pathlib import Path

import pytest

from fedagent_coordinator.errors import ParameterError, UnknownNameError

from .harness import Site, recipe


def test_an_unknown_placement_is_refused_with_those_there_are(tmp_path: Path) -> None:
    site = Site(tmp_path, recipe("placement.name=moon"), [])
    with pytest.raises(UnknownNameError, match=r"no placement is named 'moon'.*coordinator"):
        site.open()


def test_a_parameter_that_a_placement_does_not_take_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path, recipe("placement.params.height=3"), [])
    with pytest.raises(ParameterError, match="height"):
        site.open()
