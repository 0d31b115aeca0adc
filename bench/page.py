"""The live page with 1 000 agents and 20 edges: what it costs a coordinator, what a tab shows.

python -m bench.page --rounds 40

A process of its own serves the page of a run that this one writes, a round a second, a hundred
devices each; five viewers look, one of them in Chromium (first paint, latency from the commit of a
round to its number on the page, memory of the tab). `cpu` is the serving process's share of one
core with five viewers, less what it uses with none.
"""

import argparse
import http.client
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import msgspec
import numpy as np
import psutil
from playwright.sync_api import Page, sync_playwright

from fedagent_coordinator.books.write import Books
from fedagent_coordinator.core.effects import HeldOutEvaluated
from fedagent_coordinator.picture.status_files import Known, Word
from fedagent_coordinator.picture.status_files import Page as Served
from fedagent_coordinator.policies.base import RoundView
from fedagent_task.recipe.text import parse_recipe
from tests.fakes.rounds import column_view
from tests.fakes.stored_runs import small_plan, small_result
from tests.fakes.written_runs import RECIPE

from .rows import Row, Rows, show

AGENTS, EDGES, ORDERED, VIEWERS, BEFORE = 1000, 20, 100, 5, 300
SERVE = """
import sys, time
from pathlib import Path
from fedagent_coordinator.config import PageAddress
from fedagent_coordinator.web.server import PageServer
server = PageServer(Path(sys.argv[1]), PageAddress("127.0.0.1", 0))
print(server.start(), flush=True)
sys.stdin.read()
server.stop()
"""


def view_of(round_: int, rng: np.random.Generator) -> RoundView:
    """Each agent reaches three edges, at a rate that changes a little."""
    clients = np.repeat(np.arange(AGENTS, dtype=np.int32), 3)
    edges = ((clients + np.tile([0, 1, 7], AGENTS)) % EDGES).astype(np.int32)
    rates = (10 ** (5 + 2 * ((clients * 37) % 100) / 100)) * rng.uniform(0.9, 1.1, len(clients))
    plain = column_view(round_, price=[1_000_000] * AGENTS, compute=[0.5] * AGENTS)
    return replace(
        plain,
        pair_client=clients,
        pair_edge=edges,
        pair_features=rates[:, None].astype(np.float32),
        feature_names=("upload_bps",),
        edge_budget=np.full(EDGES, 100_000_000, dtype=np.int64),
        deadline_s=1.0,
    )


class Field:
    """The run that is written beside the page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Books(folder)
        ids = [f"{at:032x}" for at in range(AGENTS)]
        self.run = self.store.begin_run(
            recipe_digest="d" * 64,
            recipe=msgspec.json.encode(parse_recipe(RECIPE)).decode(),
            seed=7,
            total_micro=10**12,
        ).run_id
        indices = self.store.indices(self.run)
        indices.clients(ids)
        indices.label_clients({ident: f"device-{at}" for at, ident in enumerate(ids)})
        for at in range(EDGES):
            indices.edge(f"edge-{at}")
            indices.label_edge(f"edge-{at}", f"hall-{at}")
        word = Word(seen_ms=1, here=True, software="fedagent 0.1.0")
        heard = {f"edge-{at}": dict.fromkeys(ids[at::EDGES], word) for at in range(EDGES)}
        Known(run=self.run, words=heard).write(folder)
        self.rng = np.random.default_rng(0)
        self.round = 0

    def play(self) -> float:
        """Write a round; return when it was committed."""
        self.round += 1
        view = view_of(self.round, self.rng)
        clients = self.rng.choice(AGENTS, ORDERED, replace=False)
        plan = small_plan(view, (3 * np.sort(clients)).tolist())
        self.store.reserve(self.run, plan, policy="random")
        paid = set(clients[self.rng.random(ORDERED) < 0.9].tolist())
        self.store.settle(self.run, small_result(plan, paid))
        done = time.time()
        self.store.save_metrics(self.run, HeldOutEvaluated(self.round, "0" * 64, {"accuracy": 0.5}))
        return done


def viewer(url: str, over: threading.Event, got: list[int]) -> None:
    """Read all events until the end."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("GET", "/api/events")
    answer = connection.getresponse()
    while not over.is_set():
        with suppress(OSError):
            got.append(len(answer.readline()))
    connection.close()


def rows(rounds: int = 40) -> Rows:
    """Return the row of the page."""
    with tempfile.TemporaryDirectory() as name:
        field = Field(Path(name))
        for _ in range(BEFORE):
            field.play()
        serving = subprocess.Popen(
            [sys.executable, "-c", SERVE, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert serving.stdin is not None
        assert serving.stdout is not None
        url = serving.stdout.readline().decode().strip()
        try:
            yield measured(field, url, serving.pid, rounds)
        finally:
            serving.stdin.close()
            serving.wait(20)
        assert Served.read(Path(name)) is not None


def measured(field: Field, url: str, pid: int, rounds: int) -> Row:
    """Play rounds while five look."""
    process, over = psutil.Process(pid), threading.Event()
    got: list[int] = []
    time.sleep(1)
    memory_before = process.memory_info().rss
    idle = _share(process, 3.0)
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        began = time.monotonic()
        page.goto(url)
        page.locator(".tile").first.wait_for()
        first_s = time.monotonic() - began
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        page.evaluate(WATCH)
        looking = [
            threading.Thread(target=viewer, args=(url, over, got), daemon=True)
            for _ in range(VIEWERS - 1)
        ]
        for one in looking:
            one.start()
        time.sleep(2)
        before, since = _seconds(process), time.monotonic()
        latency = [_latency(field, page) for _ in range(rounds)]
        cpu = (_seconds(process) - before) / (time.monotonic() - since)
        heap = page.evaluate("performance.memory.usedJSHeapSize")
        tab = max(_tabs(browser_pids(process)))
        browser.close()
    over.set()
    return {
        "bench": "page",
        "agents": AGENTS,
        "edges": EDGES,
        "viewers": VIEWERS,
        "first_paint_s": round(paint / 1000, 2),
        "first_data_s": round(first_s, 2),
        "latency_s": round(median(latency), 2),
        "latency_worst_s": round(max(latency), 2),
        "tab_mb": round(tab / 1e6),
        "heap_mb": round(heap / 1e6, 1),
        "cpu": round(cpu - idle, 3),
        "cpu_idle": round(idle, 3),
        "server_mb": round((process.memory_info().rss - memory_before) / 1e6),
        "event_kb_per_round": round(sum(got) / 1000 / max(1, rounds) / (VIEWERS - 1)),
        "met": first_s <= 1 and median(latency) <= 1 and cpu - idle <= 0.1,
    }


WATCH = """
() => {
  window.seen = {};
  const look = () => {
    const text = document.querySelector(".tile .figure")?.firstChild?.textContent.replace(/,/g, "");
    if (text && !(text in window.seen)) window.seen[text] = Date.now();
    requestAnimationFrame(look);
  };
  look();
}
"""


SEEN = """
round => Object.entries(window.seen).filter(([at]) => at >= round).map(([, when]) => when)
  .sort((a, b) => a - b)[0] ?? null
"""
"""When this round or a later one was first shown: a page may show two at once."""


def _latency(field: Field, page: Page) -> float:
    began = time.monotonic()
    committed = field.play()
    until = time.monotonic() + 10
    found = None
    while found is None and time.monotonic() < until:
        time.sleep(0.1)
        found = page.evaluate(SEEN, field.round)
    time.sleep(max(0.0, 1.0 + field.rng.uniform(0, 0.3) - (time.monotonic() - began)))
    return float(found) / 1000 - committed if found else 10.0


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _share(process: psutil.Process, seconds: float) -> float:
    before = _seconds(process)
    time.sleep(seconds)
    return (_seconds(process) - before) / seconds


def browser_pids(_serving: psutil.Process) -> list[psutil.Process]:
    """Return the renderers below this process."""
    found = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "--type=renderer" in one.cmdline():
                found.append(one)
    return found


def _tabs(processes: list[psutil.Process]) -> list[int]:
    return [one.memory_full_info().pss for one in processes] or [0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    sys.exit(not show(rows(parser.parse_args().rounds)))
