"""The page for Prometheus: what events and counters come to, and that Grafana's file fits it."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fedagent_node.effects import Emit
from fedagent_node.metrics import Metrics
from fedagent_node.settings import SettingError

DASHBOARD = Path(__file__).parents[2] / "deploy/grafana/fedagent.json"
ROUND = {
    "round": 3,
    "ordered": 4,
    "in_time": 3,
    "used": 3,
    "seconds": 2.0,
    "total_spent_micro": 5_500_000,
    "train_loss": 0.5,
    "device_score": None,
}


def told() -> Metrics:
    """Metrics that have heard an event of each kind."""
    counters = {"refused_stale": 2, "edges_sent": 9, "edges_sent_bytes": 900, "broker_restarts": 1}
    metrics = Metrics("coordinator", "me", lambda: (counters, {"edges": True}))
    for event in (
        Emit("edge_joined", {"edge": "a"}),
        Emit("edge_joined", {"edge": "b"}),
        Emit("edge_lost", {"edge": "a"}),
        Emit("round", ROUND),
        Emit("model", {"round": 3, "digest": "d", "accuracy": 0.9, "spiteful": 1.0}),
        Emit("receipt", {"status": "late"}),
        Emit("declined", {"reason": "x"}),
    ):
        metrics.note(event)
    return metrics


def values(text: str) -> dict[str, float]:
    return {
        f"{sample.name}{list(sample.labels.values()) or ''}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_events_and_counters_come_to_their_metrics() -> None:
    found = values(generate_latest(told().registry).decode())
    expected = {
        "fedagent_rounds_total['yes']": 1,
        "fedagent_updates_total['ordered']": 4,
        "fedagent_updates_total['in_time']": 3,
        "fedagent_updates_total['late']": 1,
        "fedagent_updates_total['declined']": 1,
        "fedagent_round": 3,
        "fedagent_round_seconds_sum": 2,
        "fedagent_spent_credits": 5.5,
        "fedagent_model['accuracy']": 0.9,
        "fedagent_model['train_loss']": 0.5,
        "fedagent_peers['edge']": 1,
        "fedagent_counts_total['refused_stale']": 2,
        "fedagent_link_up['edges']": 1,
        "fedagent_counts_total['edges_sent_bytes']": 900,
        "fedagent_counts_total['broker_restarts']": 1,
        "fedagent_events_total['round']": 1,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert found["process_resident_memory_bytes"] > 1e6
    assert not [name for name in found if "spiteful" in name], "nobody's words become a name"


def test_every_metric_of_the_dashboard_is_there() -> None:
    there = {name.partition("[")[0] for name in values(generate_latest(told().registry).decode())}
    targets = [
        target["expr"]
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel.get("targets", ())
    ]
    named = {name for text in targets for name in re.findall(r"\b(?:fedagent|process)_\w+", text)}
    assert len(named) > 8
    assert named <= there


async def test_an_address_that_no_card_has_is_answered_with_those_that_are_there() -> None:
    with pytest.raises(SettingError) as refused:
        await told().serve("10.99.99.99", 9111)
    assert refused.value.hint.startswith("10.99.99.99 is not an address of this machine")
