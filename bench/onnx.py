"""Scoring on devices: time of the graph of a task, and memory of an agent that scores.

The recipe's network has 60 000 weights; the graph gets them as inputs in every run.
"""

import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import psutil

from fedagent_task.models import Mlp, create
from fedagent_task.spec import ModelSpec
from fedagent_testbed.local import LocalField

RECIPE = Path(__file__).parent.parent / "deploy" / "recipes" / "digits.toml"
REPEATS = 101
SAMPLES = 1000
SPEC = ModelSpec(kind="mlp", features=784, hidden=(75,), classes=10)
AGENT = (
    "model.kind=mlp",
    "model.hidden=[800]",
    "evaluation.on_device=true",
    "learner.rate=0.1",
    "rounds.count=8",
)
"""On the 64 features of the bundled digits: 60 010 weights."""


def rows() -> Iterator[dict[str, object]]:
    if find_spec("onnxruntime") is None or find_spec("onnx") is None:
        yield {"bench": "onnx", "skipped": "onnx and onnxruntime are not installed"}
        return
    yield _scoring()
    yield _memory()


def _scoring() -> dict[str, object]:
    from fedagent_coordinator.onnx_export import to_graph
    from fedagent_task.onnx_session import OnnxSession

    model = create(SPEC)
    assert isinstance(model, Mlp)
    weights = model.init(0)
    x = np.random.default_rng(0).normal(size=(SAMPLES, SPEC.features)).astype(np.float32)
    session = OnnxSession(to_graph(SPEC), model)
    by_graph, by_numpy = session.forward(weights, x), model.forward(weights, x)
    ms, cpu_ms = _median_ms(lambda: session.forward(weights, x))
    return {
        "bench": "onnx-scoring",
        "samples": SAMPLES,
        "weights": SPEC.parameters,
        "ms": round(ms, 3),
        "cpu_ms": round(cpu_ms, 3),
        "numpy_ms": round(_median_ms(lambda: model.forward(weights, x))[0], 3),
        "largest_difference": float(np.abs(by_graph - by_numpy).max()),
        "bar": 1.5,
        "met": ms <= 1.5,
    }


def _median_ms(work: Callable[[], object]) -> tuple[float, float]:
    took, used = [], []
    for _ in range(REPEATS):
        began, busy = time.perf_counter(), time.process_time()
        work()
        took.append(time.perf_counter() - began)
        used.append(time.process_time() - busy)
    return 1000 * statistics.median(took), 1000 * statistics.median(used)


def _memory() -> dict[str, object]:
    """Let one agent score and train for some rounds; look at it and its trainer afterwards."""
    with tempfile.TemporaryDirectory(prefix="fedagent-bench-") as folder:
        local = LocalField(Path(folder), f"bench-{secrets.token_hex(4)}")
        local.defaults = {"log_level": "warning"}
        with local:
            coordinator = local.coordinator(RECIPE, broker="embedded", sets=AGENT)
            local.edge("edge-1", broker="embedded")
            agent = local.agent("agent-1", "digits:rate=50")
            coordinator.wait("end", timeout_s=200)
            scored = [e for e in coordinator.all("round") if e["device_score"] is not None]
            family = [p.pid for p in psutil.Process(agent.pid).children(recursive=True)]
            mapped = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in family)
            pss_mb = agent.pss_bytes() / 1e6
    loaded = {name: f"/{name}/" in mapped for name in ("onnxruntime", "torch")}
    used = loaded == {"onnxruntime": True, "torch": False} and len(scored) > 0
    return {
        "bench": "onnx-agent",
        "pss_mb": round(pss_mb, 1),
        "rounds_scored": len(scored),
        "loaded": [name for name, there in loaded.items() if there],
        "bar": 120,
        "met": used and pss_mb <= 120,
    }
