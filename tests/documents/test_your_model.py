"""docs/your-model.md, typed as it stands by somebody with a module."""

import re
from pathlib import Path

import pytest

from .machines import lan, why_not
from .pages import Page

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,  # torch is loaded by nine processes
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

PAGE = Page("docs/your-model.md")
PAGE.skips("torch is here already", "pip install torch")
RUN, BUILD, SHOW, COORDINATOR, EDGE, DEVICE, USE, EXPORT = PAGE.takes(
    "python run.py",
    "fedagent task build my_model.py:build -o my_model.fedtask",
    "fedagent task show my_model.fedtask",
    "fedagent coordinator start --recipe my_model.fedtask --set data.scale=0.0625 "
    "--set rounds.count=5 --set evaluation.dataset=digits-test",
    "fedagent edge start",
    "fedagent start --stream digits",
    "python use.py",
    "fedagent export --data-dir first/coordinator --model weights.safetensors",
)


def files() -> dict[str, str]:
    return dict(
        re.findall(r"^```python file=(\S+)\n(.*?)^```$", PAGE.text, re.DOTALL | re.MULTILINE)
    )


def test_it_is_as_short_as_it_should_be() -> None:
    written = files()
    lines = [line for name in ("my_model.py", "run.py") for line in written[name].splitlines()]
    assert len([line for line in lines if line.strip()]) <= 15


def test_from_a_module_to_real_devices_and_back(tmp_path: Path) -> None:
    with lan(tmp_path, "192.168.1.10") as (machine,):
        for name, text in files().items():
            (machine.cwd / name).write_text(text, encoding="utf-8")
        shown = machine.types(RUN)
        assert float(shown.rpartition("accuracy ")[2]) > 0.7
        shown = machine.types(BUILD, SHOW)
        assert shown.count("batch_norm") == 2
        coordinator, edge, device = [machine.opens(line) for line in (COORDINATOR, EDGE, DEVICE)]
        coordinator.until(r"end: rounds_done=5")
        assert coordinator.ended() == 0
        assert float(machine.types(USE)) > 0.7
        machine.types(EXPORT)
        assert (machine.cwd / "weights.safetensors").stat().st_size > 40_000
        for terminal in (edge, device):
            terminal.ctrl_c()
            assert terminal.ended() == 0
