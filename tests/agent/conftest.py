from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.trainer_bench import TrainerBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TrainerBench]:
    made = TrainerBench(tmp_path)
    yield made
    made.trainer.close()
