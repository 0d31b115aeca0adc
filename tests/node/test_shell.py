"""What every process does around its core."""

import asyncio
import gc
import warnings
from pathlib import Path

from fedagent_agent.config import AgentConfig
from fedagent_node.shell import Shell


async def test_work_that_an_end_overtakes_is_not_left_unawaited(tmp_path: Path) -> None:
    shell = Shell(
        AgentConfig(data_dir=str(tmp_path), stream="digits"), fatal=(), show=lambda _: None
    )

    async def begin() -> None:
        shell.spawn(asyncio.sleep(60), "sleeps")

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        await shell.run(begin)
        gc.collect()
    assert [str(warning.message) for warning in said] == []
