"""How an edge weighs updates by its task's strategy, and what it does with what devices tell."""

from pathlib import Path

import numpy as np
import pytest

from fedagent_edge.core.admission import Verdict, check_content
from fedagent_edge.core.effects import (
    Admit,
    Commit,
    Committed,
    Memory,
    OpenRound,
    SaveRound,
    SaveState,
)
from fedagent_edge.core.round import Round
from fedagent_edge.core.weighing import weighing_of
from fedagent_edge.store import EdgeStore
from fedagent_protocol import messages as m
from fedagent_protocol.tensors import Manifest, decode_tensors, digest_of, encode_tensors
from fedagent_protocol.transfer import Layout
from fedagent_task.aggregation.bounds import Term
from fedagent_task.privacy import accountant
from fedagent_task.privacy.accountant import deviation_of
from fedagent_task.recipe.spec import (
    AggregationSpec,
    LearnerSpec,
    LimitsSpec,
    ModelSpec,
    PrivacySpec,
    TaskSpec,
)
from fedagent_task.recipe.text import task_bytes

from .harness import RUN as RUN_HERE
from .harness import Field, ToyAgent, expected_mean, field_of, model_tensors

RUN, TASK = "0" * 32, "a" * 64
SOFTMAX = ModelSpec(kind="softmax", features=2, classes=2)


def task(name: str, **params: float) -> bytes:
    return task_bytes(
        TaskSpec(
            model=SOFTMAX,
            learner=LearnerSpec(rate=0.5, batch=10, buffer=40, passes=2),
            limits=LimitsSpec(norm=3.0),
            aggregation=AggregationSpec(name=name, params={**params}),
        )
    )


def round_of(body: bytes, agents: int = 2) -> Round:
    order = m.RoundOrder(
        run=RUN,
        round=1,
        task=TASK,
        assignments=tuple(m.Assignment(agent=f"a{i}") for i in range(agents)),
        deadline_ms=1000,
        max_wait_ms=3000,
    )
    return Round(RUN, order, TASK, Layout(9, 1024), 10.0, weighing_of(body))


def arrive(rnd: Round, agent: str, samples: int, *, norm: float = 1.0, **course: float) -> None:
    part = rnd.parts[agent]
    stats = m.TrainStats(num_samples=samples, course=m.TrainCourse(**course))
    part.offer = m.UpdateOffer(
        digest=TASK, size=9, chunk_bytes=1024, base=TASK, task=TASK, stats=stats
    )
    part.after_s = 0.1
    rnd.admit(part, Verdict(norm=norm))


@pytest.mark.parametrize(
    ("name", "reason"), [("fednova", "no local_steps"), ("qfedavg", "no base_loss")]
)
def test_who_does_not_tell_is_paid_and_not_used(name: str, reason: str) -> None:
    rnd = round_of(task(name))
    arrive(rnd, "a0", 30)
    outcome = rnd.outcome(rnd.parts["a0"], 11.0)
    assert (outcome.valid, outcome.used, outcome.weight, outcome.reason) == (True, False, 0, reason)
    assert rnd.failed == "0 of 1 updates"


def test_control_variates_have_a_limit_of_their_own() -> None:
    tensors = {"w": np.full(4, 1.0, np.float32), "control/w": np.full(4, 5.0, np.float32)}
    data = encode_tensors(tensors)
    manifest = Manifest.of(tensors)

    def verdict(**limits: float) -> Verdict:
        return check_content(data, digest_of(data), manifest, 3.0, **limits)  # type: ignore[arg-type] # floats

    assert verdict() == Verdict(norm=2.0, control_norm=10.0)
    assert verdict(control_limit=10.0).valid
    assert verdict(control_limit=9.0).reason == "control_norm"
    assert weighing_of(task("scaffold")).control_limit == 12.0
    counted = check_content(data, digest_of(data), manifest, 1.0, latest=("w",))
    assert counted == Verdict(norm=0.0, control_norm=10.0)


def test_the_store_sums_by_coefficients_and_keeps_the_newest_counter(tmp_path: Path) -> None:
    base = {"w": np.zeros(2, np.float32), "n": np.array([5.0], np.float32)}
    deltas = [
        {"w": np.array([2.0, 0.0], np.float32), "n": np.array([3.0], np.float32)},
        {"w": np.array([0.0, 6.0], np.float32), "n": np.array([9.0], np.float32)},
    ]
    weights, coefficients = (30.0, 10.0), (15.0, 2.0)
    store = opened(tmp_path)
    data = encode_tensors(base)
    digest = store._models.put(data)
    store.write(SaveState(Memory(run=RUN, model=digest, model_bytes=len(data))), 0.0)
    order = round_of(task("fednova")).order
    saved = OpenRound(run=RUN, order=order, base=digest, began_at=0.0, latest=("n",))
    store.write(SaveRound(saved), 0.0)
    for place, delta in enumerate(deltas):
        body = encode_tensors(delta)
        key = (RUN, 1, f"a{place}")
        offer = m.UpdateOffer(
            digest=digest_of(body),
            size=len(body),
            chunk_bytes=65536,
            base=digest,
            task=TASK,
            stats=m.TrainStats(num_samples=1),
        )
        assert store.job(Admit(key, offer, 0.5, norm_limit=8.0, whole=body)) is None
        (admitted,) = store.flush()
        # The counter's 9 is none of the norm of 6.
        assert admitted.verdict.norm in (2.0, 6.0)  # type: ignore[attr-defined] # of an update
    wanted = {"w": np.array([30.0, 12.0]) * 3.0 / 40.0, "n": np.array([14.0])}
    for _ in range(2):
        terms = tuple(
            ((f"a{i}", ""), Term(*pair))
            for i, pair in enumerate(zip(coefficients, weights, strict=True))
        )
        job = store.job(Commit(RUN, 1, digest, 3.0, terms=terms))
        assert job is not None
        done = job.work()
        assert isinstance(done, Committed)
        made = decode_tensors(store._models.get(done.digest), Manifest.of(base))
        assert np.allclose(made["w"], wanted["w"])
        assert made["n"] == wanted["n"]
        # The same again after a kill: the sum is that of the journal.
        store.close()
        store = opened(tmp_path)
        store.load(1.0)
    store.close()


def opened(folder: Path) -> EdgeStore:
    from collections import Counter

    return EdgeStore(folder, chunk_bytes=65536, boot="b", counters=Counter())


def test_an_edge_without_the_strategy_refuses_the_round_and_says_so(tmp_path: Path) -> None:
    field = Field(tmp_path, {"a0": ToyAgent("a0")})
    for number, name in enumerate(("fedsuper", "fedavg"), 1):
        named = f"{number}" * 64
        welcome = m.EdgeWelcome(run=RUN_HERE, coordinator="coord", task=named, body=task(name))
        field.coordinator(welcome)
        field.give_model()
        field.agents["a0"].hello(field)
        field.run_for(0.5)
        field.order(number, task=named)
        report = field.run_until_report(number)
        assert ("fedsuper" in report.failed) is (name == "fedsuper")


PRIVATE = task_bytes(
    TaskSpec(
        model=ModelSpec(kind="softmax", features=2, classes=2),
        privacy=PrivacySpec(mode="central", clip=3.0, releases=10),
    )
)


def test_a_sum_gets_noise_before_the_edge_has_a_model_of_it(tmp_path: Path) -> None:
    pytest.importorskip("opendp", reason="opendp is not installed")
    noise = deviation_of(PrivacySpec(mode="central", clip=3.0, releases=10))
    field = field_of(tmp_path, 4, size=20_000, body=PRIVATE)
    sent: list[bytes] = []
    for number in (1, 2):
        field.order(number, weighting=m.Weighting.UNIFORM)
        report = field.run_until_report(number)
        assert (report.used, report.failed) == (4, "")
        assert all(one.norm == 0 for one in report.outcomes), "a norm tells of a single update"
        sent.append((tmp_path / "models" / report.model).read_bytes())
    first = decode_tensors(sent[0], Manifest.of(model_tensors(20_000)))["weight"]
    plain = expected_mean(20_000, dict.fromkeys(field.agents, 1.0))["weight"]
    difference = first.astype(np.float64) - plain
    assert difference.std() == pytest.approx(noise / 4, rel=0.03)


def test_without_the_accountant_the_edge_runs_no_private_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accountant, "find_spec", lambda _: None)
    for cached in (accountant._for_one, accountant.epsilon_of, weighing_of):
        cached.cache_clear()
    field = field_of(tmp_path, 2, body=PRIVATE)
    field.order(1, weighting=m.Weighting.UNIFORM)
    report = field.run_until_report(1)
    assert "[privacy]" in report.failed
    assert not any(agent.orders for agent in field.agents.values())
    weighing_of.cache_clear()
