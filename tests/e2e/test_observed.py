"""A field that is observed from outside: metrics of every role, and logs that programs read."""

import json
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from fedagent_node.network import free_port

from .support import DEMO, PATIENT, labels, new_field


def scraped(port: int) -> dict[tuple[str, ...], float]:
    """Return what the page at a port says, by name and values of the labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        text = page.read().decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_role_tells_what_it_counted(tmp_path: Path) -> None:
    ports = {name: free_port("127.0.0.1") for name in ("coordinator", "edge-0", "agent-0")}
    with new_field(tmp_path, log_format="json") as field:
        coordinator = field.coordinator(
            DEMO,
            broker="embedded",
            sets=("rounds.count=4", "rounds.every_s=0.2", *PATIENT),
            linger_s=60,
            metrics=str(ports["coordinator"]),
        )
        field.edge("edge-0", broker="embedded", metrics=str(ports["edge-0"]))
        field.agent("agent-0", labels(0), metrics=f"127.0.0.1:{ports['agent-0']}")
        assert coordinator.wait("end")["rounds_done"] == 4
        found = {name: scraped(port) for name, port in ports.items()}
    assert found["coordinator"]["fedagent_round",] == 4
    assert found["coordinator"]["fedagent_updates_total", "used"] == 4
    assert found["coordinator"]["fedagent_peers", "edge"] == 1
    assert found["edge-0"]["fedagent_rounds_total", "yes"] == 4
    assert found["edge-0"]["fedagent_peers", "agent"] == 1
    assert found["agent-0"]["fedagent_updates_total", "ordered"] == 4
    for name, values in found.items():
        assert values["process_resident_memory_bytes",] > 1e7, name
        counts = [(key, v) for key, v in values.items() if key[0] == "fedagent_counts_total"]
        sent = [v for (_, name), v in counts if name.endswith("_sent_bytes")]
        assert sum(sent) > 1000, f"{name} counts no bytes"
    lines = [json.loads(line) for line in coordinator.log.read_text().splitlines()]
    assert any("metrics at http" in line["text"] for line in lines)
    assert {"at", "level", "logger", "text"} <= set(lines[0])
