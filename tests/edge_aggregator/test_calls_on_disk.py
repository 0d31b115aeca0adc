"""Calls with a real directory: agents fetch the model, the net loses, the edge is killed."""

import random
from pathlib import Path

import numpy as np
import pytest

from fedagent_protocol import messages as m
from fedagent_protocol.transfer import Layout

from .evaluators import scores
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


EVERYBODY = {f"a{i}": i / 8 for i in range(4)}


@pytest.mark.parametrize("size", [64, 40_000], ids=["small", "many-chunks"])
def test_everybody_fetches_the_model_once_from_the_topic_and_evaluates_it(
    tmp_path: Path, size: int
) -> None:
    f = _field(tmp_path, size=size, chunk_bytes=16 * 1024)
    _call(f)
    f.run_for(5.0)
    assert scores(_told(f)[0]) == EVERYBODY
    assert f.broadcasts == Layout(len(f.model), f.chunk_bytes).count
    _call(f, 1)
    f.run_for(1.0)
    assert scores(_told(f, 1)[0]) == EVERYBODY
    assert f.broadcasts == Layout(len(f.model), f.chunk_bytes).count


def test_a_round_after_the_call_trains_from_the_evaluated_model(tmp_path: Path) -> None:
    f = _field(tmp_path)
    _call(f)
    f.run_for(1.0)
    f.order(1)
    report = f.run_until_report()
    assert all(outcome.used for outcome in report.outcomes)
    before = len(_told(f))
    f.run_for(5.0)
    assert len(_told(f)) == before, "the order says that nobody waits for opinions any more"


@pytest.mark.parametrize("seed", range(8))
def test_a_net_that_loses_repeats_and_delays_costs_time_but_no_opinion(
    tmp_path: Path, seed: int
) -> None:
    f = _field(tmp_path, size=20_000, chunk_bytes=16 * 1024)
    f.lossy = random.Random(seed)
    _call(f)
    f.run_for(20.0)
    assert scores(_told(f)[0]) == EVERYBODY


def test_an_edge_that_is_killed_in_a_call_asks_again(tmp_path: Path) -> None:
    f = _field(tmp_path)
    _call(f)
    f.run_for(0.1)
    assert not _told(f)
    f.restart()
    f.run_for(0.9)
    _call(f, until_ms=19_000)
    f.run_for(3.0)
    assert scores(_told(f)[0]) == EVERYBODY
    assert _told(f)[0].epoch == f"{2:032x}"


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
