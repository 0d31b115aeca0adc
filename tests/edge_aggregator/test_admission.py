"""Hostile and damaged updates, E1-E7 of the fault matrix: a reason each, others unharmed."""

from pathlib import Path

import numpy as np
import pytest

from fedagent_edge.core.admission import check_content
from fedagent_edge.core.effects import Admitted
from fedagent_node.effects import Effect, Input
from fedagent_protocol import messages as m
from fedagent_protocol.tensors import Manifest, digest_of, encode_tensors

from .harness import delta, expected_mean, field_of

GOOD = delta("a0")


def _with(name: str, value: object) -> dict[str, np.ndarray]:
    array = GOOD[name].copy()
    array.reshape(-1)[0] = value
    return {**GOOD, name: array}


CONTENTS: dict[str, tuple[str, dict[str, np.ndarray] | bytes]] = {
    "one inf": ("non_finite", _with("bias", np.inf)),
    "transposed": ("manifest_mismatch", {**GOOD, "weight": GOOD["weight"].T.copy()}),
    "extra": ("manifest_mismatch", {**GOOD, "more": GOOD["bias"]}),
    "dtype": ("manifest_mismatch", {**GOOD, "bias": GOOD["bias"].astype(np.float64)}),
    "zero-dim": ("manifest_mismatch", {**GOOD, "bias": np.array(1.0, np.float32)}),
    "short": ("manifest_mismatch", b"abc"),
    "many empty tensors": (
        "manifest_mismatch",
        {f"t{i}": np.zeros((0,), np.float32) for i in range(3000)},
    ),
    "header lies long": ("oversize", (2**40).to_bytes(8, "little") + b"{}"),
}


FACTS: dict[str, tuple[str, dict[str, object]]] = {
    "no samples": ("sample_count", {"stats": m.TrainStats(num_samples=0)}),
    "another base": ("stale_base", {"base": "b" * 64}),
    "another task": ("wrong_task", {"task": "b" * 64}),
    "limit plus one": ("oversize", {"size": 2_000_000}),
    "empty": ("oversize", {"size": 0}),
    "tiny chunks": ("bad_chunk", {"chunk_bytes": 1024, "size": 100_000}),
    "first too long": ("bad_chunk", {"first": b"x" * 70_000}),
}


@pytest.mark.parametrize("case", [*CONTENTS, *FACTS])
def test_a_bad_update_is_rejected_and_the_round_goes_on(tmp_path: Path, case: str) -> None:
    field = field_of(tmp_path, 3)
    hostile = field.agents["a1"]
    if case in FACTS:
        reason, hostile.overrides = FACTS[case]
    else:
        reason, content = CONTENTS[case]
        hostile.body = content if isinstance(content, bytes) else encode_tensors(content)
        hostile.chunk_bytes = 256 * 1024
    field.order(norm_limit=100.0)
    report = field.run_until_report()
    outcome = report.outcomes[1]
    assert (outcome.status, outcome.reason, outcome.valid) == ("rejected", reason, False)
    assert [(r.status, r.reason) for r in hostile.receipts] == [("rejected", reason)]
    assert field.core.counters[f"rejected_{reason}"] == 1
    assert (report.used, report.weight) == (2, 20.0)
    model = encode_tensors(expected_mean(64, {"a0": 10.0, "a2": 10.0}))
    assert report.model == digest_of(model)


@pytest.mark.parametrize(
    "overrides", [{"round": 7}, {"run": "f" * 32}, {"round": 0}], ids=["future", "run", "none"]
)
def test_updates_of_other_rounds_and_runs_expire(
    tmp_path: Path, overrides: dict[str, object]
) -> None:
    field = field_of(tmp_path, 2)
    field.agents["a1"].overrides = overrides
    field.order(deadline_ms=1000, max_wait_ms=1500)
    report = field.run_until_report()
    assert [o.status for o in report.outcomes] == ["arrived", "missed"]
    assert field.agents["a1"].receipts[-1].status is m.ReceiptStatus.EXPIRED
    assert field.core.counters["expired"] >= 1


def test_an_agent_that_was_not_ordered_gets_nothing_and_changes_nothing(tmp_path: Path) -> None:
    field = field_of(tmp_path, 3)
    outsider = field.agents["a2"]
    chosen = (m.Assignment(agent="a0"), m.Assignment(agent="a1"))
    field.order(assignments=chosen)
    order = m.TrainOrder(
        run=field.core.memory.run, round=1, task=field.core.memory.task,
        model=field.digest, size=len(field.model), chunk_bytes=1024, deadline_ms=1, give_up_ms=1,
    )  # fmt: skip
    outsider.orders.append(order)
    field.to_edge("a2", m.Need(run=order.run, round=1, digest=field.digest, ranges=((0, 1),)))
    field.to_edge("a2", outsider.make_offer(order))
    report = field.run_until_report()
    assert report.used == 2
    assert outsider.receipts[-1].reason == "not_ordered"
    assert field.core.counters["need_unknown"] == 1


def test_a_verdict_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    field = field_of(tmp_path, 2)
    receive = field.core.receive

    def repeated(event: Input, now: float) -> list[Effect]:
        effects = receive(event, now)
        return [*effects, *receive(event, now)] if isinstance(event, Admitted) else effects

    monkeypatch.setattr(field.core, "receive", repeated)
    field.order()
    assert field.run_until_report().used == 2
    assert field.core.counters["updates_accepted"] == 2


def test_a_norm_exactly_at_the_limit_is_taken() -> None:
    tensors = {"w": np.array([3.0, 4.0], np.float32)}
    data = encode_tensors(tensors)
    for limit, valid in ((5.0, True), (4.999, False)):
        verdict = check_content(data, digest_of(data), Manifest.of(tensors), norm_limit=limit)
        assert verdict.valid is valid
        assert verdict.norm == pytest.approx(5.0)
