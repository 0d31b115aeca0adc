"""Calls with a real directory: agents fetch the model, the net loses, the edge is killed."""

from pathlib import Path

import numpy as np
import pytest

from fedagent_protocol import messages as m

from .harness import RUN, Field, ToyAgent

CANARY = 0.8137254901960784


def _field(directory: Path, **facts: object) -> Field:
    agents = {f"a{i}": ToyAgent(f"a{i}", score=i / 8) for i in range(4)}
    return Field(directory, agents, **facts).ready()  # type: ignore[arg-type]  # a test's facts


def _call(f: Field, number: int = 0, **facts: object) -> None:
    values: dict[str, object] = {
        "run": RUN, "round": number, "model": f.digest, "until_ms": 20_000, **facts,
    }  # fmt: skip
    f.coordinator(m.OpinionOpen(**values))  # type: ignore[arg-type]  # a test's own facts


def _told(f: Field, number: int = 0) -> list[m.Opinions]:
    told = [one for one in f.to_coordinator if isinstance(one, m.Opinions)]
    return [one for one in told if one.round == number]


@pytest.mark.parametrize("mode", list(m.OpinionMode))
def test_nothing_of_an_opinion_is_on_the_edges_disk(tmp_path: Path, mode: m.OpinionMode) -> None:
    f = _field(tmp_path)
    for agent in f.agents.values():
        agent.score = CANARY
    _call(f, mode=mode)
    f.run_for(2.0)
    f.order(1)
    f.run_until_report()
    found = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for form in (">f8", "<f8", ">f4", "<f4"):
        assert np.array(CANARY, form).tobytes() not in found
    assert str(CANARY)[:8].encode() not in found
    assert bool(_told(f)) == (mode is m.OpinionMode.REPORT)
    assert str(CANARY)[:8] not in "".join(note.text for note in f.notes)
