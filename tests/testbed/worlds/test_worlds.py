"""Every world: the same by seed whatever is decided, and a truth that is true."""

import gzip
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.policies import RoundView
from fedagent_coordinator.policies.base import FloatArray
from fedagent_testbed.study import TestbedRecipe as Study
from fedagent_testbed.study import load_recipe, make_world

RADIO = ("world.clients=12", "world.edges=3", "rounds.count=20")
OPEN = ("world.kind=open", "world.edges=1", "world.clients=10", "world.success=0.6")
EXCHANGE = ("world.kind=exchange", "world.edges=1", "world.clients=12", "budget.per_edge=5")
TRACES = (
    "world.kind=traces",
    "world.clients=9",
    "world.edges=2",
    "world.traces.links=links",
    "rounds.deadline_s=1.3",
)
LIVE = ("world.radio.static=true", "world.radio.features=live")
CHANCES = ("world.kind=chances", "world.clients=12", "world.edges=3", "rounds.count=20")
RECORDED = (
    "world.kind=recorded",
    "world.clients=16",
    "world.edges=2",
    "rounds.count=20",
    "rounds.deadline_s=1",
)
TROUBLES = (
    *(
        "world.dying.share=0.3",
        "world.dying.after=0.1",
        "world.dying.heal=3",
        "world.flips.every=3",
        "world.flips.loss=0.4",
    ),
    *(
        "world.correlated.chance=0.2",
        "world.correlated.by=group",
        "world.correlated.groups=3",
        "world.late.share=0.2",
    ),
    *(
        "world.bad_edge.fails=0.3",
        "world.repriced.share=0.5",
        "world.cold.rounds=2",
        "world.cold.extra_s=0.5",
    ),
    "world.missing.share=0.2",
)
WORLDS = {
    "radio": RADIO,
    "radio-churn": (*RADIO, "world.churn.share=0.3", "world.churn.every=2"),
    "radio-static-live": (*RADIO, *LIVE),
    "radio-static-troubled": (
        *RADIO,
        *LIVE,
        *TROUBLES,
        "world.speeds.share=0.5",
        "world.visible=2",
    ),
    "own-troubled": (*CHANCES, *TROUBLES, "world.chances.sure=0.2"),
    "compute": (
        *CHANCES,
        "world.chances.by=compute",
        "world.cold.rounds=4",
        "world.cold.extra_s=0.7",
    ),
    "recorded-troubled": (*RECORDED, *(one for one in TROUBLES if "repriced" not in one)),
    "open": OPEN,
    "traces": TRACES,
    "traces-troubled": (*TRACES, *TROUBLES, "world.bad_edge.slower=1.5"),
}
NOBODY = np.zeros(0, dtype=np.int64)


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two recorded links of 120 kbit/s to 1.2 Mbit/s, in packets of 1500 bytes."""
    folder = tmp_path / "links"
    folder.mkdir()
    for name, gap in (("slow", 100), ("fast", 10)):
        stamps = [t + (t // 3000) % 2 * (gap // 2) for t in range(gap, 30_000, gap)]
        text = "\n".join(map(str, sorted(stamps)))
        (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    monkeypatch.setenv("FEDAGENT_DATA", str(tmp_path))
    return tmp_path


def recipe(sets: tuple[str, ...]) -> Study:
    return load_recipe("cocs-decisions", sets)


def columns(view: RoundView) -> dict[str, list[object]]:
    truth = view.known_truth()
    return {
        "client": view.pair_client.tolist(),
        "edge": view.pair_edge.tolist(),
        "features": np.nan_to_num(view.pair_features, nan=-1.0).tolist(),
        "starts": [] if view.client_starts is None else view.client_starts.tolist(),
        "price": view.client_price.tolist(),
        "available": view.client_available.tolist(),
        "budget": view.edge_budget.tolist(),
        "arrives": truth.arrives.tolist(),
        "chance": truth.chance.tolist(),
        "tau": truth.tau_s.tolist(),
    }


def walk(
    sets: tuple[str, ...], seed: int, order: Callable[[RoundView], np.ndarray], rounds: int = 8
) -> list[dict[str, list[object]]]:
    world, seen = make_world(recipe(sets), seed), []
    for t in range(1, rounds + 1):
        view = world.view(t)
        seen.append(columns(view))
        world.play(view, order(view))
    return seen


@pytest.mark.parametrize("name", WORLDS)
def test_a_seed_is_a_world_whatever_is_decided(name: str) -> None:
    nobody = walk(WORLDS[name], 3, lambda _view: NOBODY)
    assert walk(WORLDS[name], 3, lambda view: np.arange(len(view.pair_client))) == nobody
    assert walk(WORLDS[name], 4, lambda _view: NOBODY) != nobody


def test_in_the_exchange_world_only_who_is_warm_depends_on_decisions() -> None:
    one = walk(EXCHANGE, 3, lambda _view: NOBODY)
    two = walk(EXCHANGE, 3, lambda _view: np.array([2, 5]))
    assert one[0] == two[0]
    for cold, warm in zip(one[1:], two[1:], strict=True):
        assert [key for key in cold if cold[key] != warm[key]] == ["tau"]
        saved = np.array(cold["tau"], dtype=float) - np.array(warm["tau"], dtype=float)
        assert np.flatnonzero(saved).tolist() == [2, 5]
        assert saved[[2, 5]] == pytest.approx([1.0, 1.0])


def test_exchange_times_are_what_the_setting_says() -> None:
    world = make_world(load_recipe("rbcs-f-numeric", ["world.clients=8000"]), 1)
    view = world.view(1)
    expected_s, mu = view.known_truth().tau_s, view.feature("compute")
    tau_s = world.play(view, np.arange(8000)).tau_s
    assert 0.5 <= mu.min() < 0.51
    assert 1.99 < mu.max() <= 2
    assert 2e6 <= view.feature("bandwidth_hz").min() < 2.01e6
    assert view.client_available.mean() == pytest.approx(0.8, abs=0.02)
    inverse_mu, on_air = np.log(4) / 1.5, 20 * np.log(2) / 2
    for i, (work, snr) in enumerate(((1, 1000), (2, 100), (3, 10), (4, 1))):
        own = slice(2000 * i, 2000 * (i + 1))
        expected = work * inverse_mu + 1 + on_air / np.log2(1 + snr)
        assert expected_s[own].mean() == pytest.approx(expected, rel=0.02)
        assert tau_s[own].mean() == pytest.approx(expected, rel=0.05)
    noise = tau_s / expected_s
    assert 0 <= noise.min() < 0.01
    assert 1.99 < noise.max() <= 2


@pytest.mark.parametrize("name", [*WORLDS, "exchange"])
def test_hindsight_is_what_happens(name: str) -> None:
    world = make_world(recipe(WORLDS.get(name, EXCHANGE)), 5)
    arrived = 0
    for t in range(1, 10):
        view = world.view(t)
        everybody = np.arange(len(view.pair_client))
        feedback = world.play(view, everybody)
        assert feedback.X.tolist() == view.known_truth().arrives.tolist()
        arrived += int(feedback.X.sum())
    assert arrived > 0


def link(view: RoundView, setting: Study) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Seconds before the upload, bandwidth and mean SNR of every pair, out of the features."""
    band, radio = view.feature("bandwidth_hz"), setting.world.radio
    loss = 128.1 + 37.6 * np.log10(view.feature("distance_km"))
    snr = 10 ** ((23 - loss - radio.noise_dbm_hz - 10 * np.log10(band)) / 10)
    began = 0.18e6 / view.feature("download_bps") + 2.41 / view.feature("compute")
    return began, band, snr


@pytest.mark.parametrize("noise", [-166, -160])
def test_the_chance_is_the_frequency_over_the_upload_fading(noise: int) -> None:
    setting = recipe((*RADIO, f"world.radio.noise_dbm_hz={noise}"))
    view = make_world(setting, 7).view(1)
    began, band, snr = link(view, setting)
    redraws = 20_000
    fading = np.random.default_rng(1).exponential(size=(redraws, len(band)))
    tau = began + 0.18e6 / (band * np.log2(1 + snr * fading))
    truth = view.known_truth()
    share = (tau <= 3.0).mean(axis=0)
    assert 0.1 < share.mean() < 0.9
    spread = np.sqrt(share * (1 - share) / redraws)
    assert (np.abs(share - truth.chance) <= 4.5 * spread + 1e-4).all()
    assert np.median(tau, axis=0) == pytest.approx(truth.tau_s, rel=0.05)


BY_CHANCE = sorted(name for name in WORLDS if not name.startswith("traces"))


@pytest.mark.parametrize("name", BY_CHANCE)
def test_what_arrives_has_the_chance_it_was_said_to_have(name: str) -> None:
    world, off, spread = make_world(recipe(WORLDS[name]), 11), 0.0, 0.0
    for t in range(1, 301):
        truth = world.view(t).known_truth()
        off += float((truth.arrives - truth.chance).sum())
        spread += float((truth.chance * (1 - truth.chance)).sum())
    assert abs(off) < 4 * math.sqrt(spread)


def test_liars_are_slower_than_they_say_and_ask_for_what_they_say() -> None:
    patient = (*RADIO, "rounds.deadline_s=1e9")
    honest = make_world(recipe(patient), 2)
    lying = make_world(recipe((*patient, "world.liars.share=1", "world.liars.factor=2")), 2)
    true, claimed = honest.view(1), lying.view(1)
    assert true.client_price.tolist() == claimed.client_price.tolist()
    assert true.feature("compute").tolist() == claimed.feature("compute").tolist()
    everybody = np.arange(len(true.pair_client))
    true_lc = honest.play(true, everybody).lc_s
    assert true_lc == pytest.approx(2.41 / true.feature("compute"))
    assert lying.play(claimed, everybody).lc_s == pytest.approx(2 * true_lc)
