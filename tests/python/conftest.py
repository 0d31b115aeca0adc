"""One run for all tests that read one."""

import pytest

import fedagent
from fedagent import Run, run_local

from .runs import RECIPE, samples


@pytest.fixture(scope="package")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_local(
        fedagent.Task.from_recipe(RECIPE),
        agents=3,
        data=samples(600),
        test=0.25,
        policy=("random", {"slot_rounds": 1}),
        sets={"learner.rate": 0.6},
        folder=tmp_path_factory.mktemp("runs") / "signs",
        progress=False,
    )
