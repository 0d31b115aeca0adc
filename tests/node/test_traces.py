"""Traces: where they may go, and spans whose ids follow from what every role knows."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from fedagent_node import traces
from fedagent_node.effects import Emit
from fedagent_node.network import free_port
from fedagent_node.traces import ENDPOINTS, FLUSH_S, Traces, hindrance, open_traces, trace_id
from tests.e2e.support import DEMO, PATIENT, labels, new_field

RUN = "a" * 32
SLACK_NS = 500_000_000
"""A span is placed by its end, which is told after its writes: milliseconds, or a busy disk."""


class Collector:
    """A real HTTP server that keeps the spans that come, by the name of their service."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []
        kept = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") is None and self.path == "/v1/traces":
                    for one in ExportTraceServiceRequest.FromString(body).resource_spans:
                        named = {a.key: a.value.string_value for a in one.resource.attributes}
                        for scope in one.scope_spans:
                            kept.extend((named["service.name"], span) for span in scope.spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    made = Collector()
    monkeypatch.setenv(ENDPOINTS[1], made.endpoint)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("endpoint", "insecure", "why"),
    [
        ("http://127.0.0.1:4318", False, ""),
        ("https://traces.example:4318", False, ""),
        ("http://traces.example:4318", True, ""),
        ("http://traces.example:4318", False, "--insecure"),
        ("127.0.0.1:4318", False, "http://127.0.0.1:4318"),
        ("grpc://127.0.0.1:4317", False, "https://"),
    ],
)
def test_traces_go_in_the_clear_to_this_machine_alone(
    endpoint: str, why: str, *, insecure: bool
) -> None:
    found = hindrance(endpoint, insecure=insecure)
    assert (why in found) if why else not found


def test_without_the_extra_the_mend_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "find_spec", lambda _: None)
    assert "[otel]" in hindrance("http://127.0.0.1:4318", insecure=False)


def test_nothing_is_loaded_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    assert open_traces("agent", "a" * 32, insecure=False) == (None, "")
    loaded = "import fedagent_node.shell, sys; sys.exit('opentelemetry' in sys.modules)"
    subprocess.run([sys.executable, "-c", loaded], check=True)


def test_rounds_and_runs_have_traces_of_their_own() -> None:
    ids = {trace_id(run, round_) for run in (RUN, "b" * 32) for round_ in (1, 2, 12)}
    assert len(ids) == 6
    assert all(0 < one < 2**128 for one in ids)


@pytest.mark.parametrize("end", ["declined", "abandoned"])
def test_a_device_that_ends_without_an_update_has_a_span_that_says_so(
    end: str, collector: Collector
) -> None:
    made = Traces("agent", "d" * 32)
    for name in ("ordered", "training", end):
        made.note(Emit(name, {"run": RUN, "round": 4, "edge": "e" * 32, "reason": "secret words"}))
    made.note(Emit("receipt", {"round": 3, "edge": "e" * 32, "status": "accepted"}))
    asyncio.run(made.close())
    spans = {span.name: span for _, span in collector.spans}
    assert set(spans) == {"agent: device round", "agent: download", f"agent: {end}"}
    facts = {a.key: a.value for a in spans["agent: device round"].attributes}
    assert facts["fedagent.end"].string_value == end
    assert not any("secret" in str(span) for span in spans.values())


def test_a_round_is_one_trace_of_all_roles(tmp_path: Path, collector: Collector) -> None:
    with new_field(tmp_path) as field:
        sets = ("rounds.count=2", *PATIENT)
        coordinator = field.coordinator(DEMO, broker="embedded", sets=sets, linger_s=1)
        run = str(coordinator.wait("ready")["run"])
        field.edge("edge-0", broker="embedded")
        field.agent("agent-0", labels(0))
        coordinator.wait("end", timeout_s=90)
    here = [(who, span) for who, span in collector.spans if _of(span) == trace_id(run, 2)]
    assert {who for who, _ in here} == {"fedagent-coordinator", "fedagent-edge", "fedagent-agent"}
    spans = {span.name.partition(": ")[2]: span for _, span in here}
    assert set(spans) >= {"decide", "settle", "collect", "close", "download", "train", "upload"}
    by_id = {span.span_id: span for _, span in here}
    assert len(by_id) == len(here), "two spans have one id"
    roots = [span for _, span in here if not span.parent_span_id]
    assert [span.name for span in roots] == ["coordinator: round"]
    for span in by_id.values():
        assert not span.parent_span_id or span.parent_span_id in by_id, span.name
        assert span.start_time_unix_nano <= span.end_time_unix_nano
    device, edge = spans["device round"], spans["edge round"]
    assert by_id[device.parent_span_id] is edge
    assert by_id[edge.parent_span_id] is roots[0]
    between = edge.start_time_unix_nano - SLACK_NS, edge.end_time_unix_nano + SLACK_NS
    assert between[0] <= device.start_time_unix_nano <= device.end_time_unix_nano <= between[1]
    assert roots[0].start_time_unix_nano <= edge.start_time_unix_nano + SLACK_NS


def test_a_collector_that_is_away_holds_up_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINTS[1], f"http://127.0.0.1:{free_port('127.0.0.1')}")
    made = Traces("agent", "d" * 32)
    made.note(Emit("ordered", {"run": RUN, "round": 4, "edge": "e" * 32}))
    made.note(Emit("declined", {"round": 4, "edge": "e" * 32}))
    began = time.monotonic()
    asyncio.run(made.close())
    assert time.monotonic() - began < 2 * FLUSH_S


def _of(span: Span) -> int:
    return int.from_bytes(span.trace_id)
