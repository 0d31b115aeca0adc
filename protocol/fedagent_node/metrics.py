"""What a role has counted, for Prometheus: `--metrics [HOST:]PORT`, an HTTP page in plain text.

Only counts leave: no names of samples, no reasons in a device's own words. Needs the extra
``metrics``; what is not asked for costs nothing.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from numbers import Real

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .effects import Emit
from .settings import SettingError

Counts = Mapping[str, int]
PEERS = ("agent", "edge", "coordinator")
SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0)
"""Upper ends of the classes of a round's duration."""
MODEL_METRICS = frozenset(
    ("accuracy", "loss", "rmse", "mae", "device_score", "train_loss", "train_error")
)
_MICRO = 1e6


class Metrics:
    """The metrics of one process: fed by its events, and read from its counters when asked."""

    def __init__(self, role: str, ident: str) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        about = {"role": role, "id": ident, "version": _version()}
        Info("fedagent", "This process.", registry=registry).info(about)
        self._events = Counter("fedagent_events", "Events.", ["event"], registry=registry)
        self._rounds = Counter("fedagent_rounds", "Rounds that ended.", ["used"], registry=registry)
        self._updates = Counter(
            "fedagent_updates", "Updates, by outcome.", ["outcome"], registry=registry
        )
        self._seconds = Histogram(
            "fedagent_round_seconds", "Duration of rounds.", buckets=SECONDS, registry=registry
        )
        self._round = Gauge("fedagent_round", "Newest round.", registry=registry)
        self._spent = Gauge(
            "fedagent_spent_credits", "Credits paid from the run's budget.", registry=registry
        )
        self._model = Gauge(
            "fedagent_model", "Score of the newest model.", ["metric"], registry=registry
        )
        self._peers = Gauge(
            "fedagent_peers", "Peers that are connected.", ["kind"], registry=registry
        )
        self._here: dict[str, set[str]] = {kind: set() for kind in PEERS}

    def note(self, event: Emit) -> None:
        """Take in one event of the role."""
        fields = event.fields
        self._events.labels(event.name).inc()
        match event.name:
            case "round" | "round_closed":
                self._note_round(fields)
            case "ordered":
                self._updates.labels("ordered").inc()
            case "receipt":
                self._updates.labels(str(fields["status"])).inc()
            case "declined" if "seconds" not in fields:  # with them: a pause of the coordinator's
                self._updates.labels("declined").inc()
            case name if name.endswith(("_joined", "_lost")):
                kind, _, how = name.rpartition("_")
                self._note_peer(kind, how, fields)
            case _:
                pass
        if event.name in {"round", "model", "end"}:
            for metric in MODEL_METRICS & fields.keys():
                if isinstance(value := fields[metric], Real):
                    self._model.labels(metric).set(float(value))

    def _note_round(self, fields: Mapping[str, object]) -> None:
        self._rounds.labels("yes" if fields["used"] else "no").inc()
        self._round.set(_number(fields["round"]))
        self._seconds.observe(_number(fields.get("seconds")))
        for outcome in ("ordered", "in_time", "used"):
            self._updates.labels(outcome).inc(_number(fields[outcome]))
        if "total_spent_micro" in fields:
            self._spent.set(_number(fields["total_spent_micro"]) / _MICRO)

    def _note_peer(self, kind: str, how: str, fields: Mapping[str, object]) -> None:
        here = self._here.get(kind)
        if here is None:
            return
        (here.add if how == "joined" else here.discard)(str(fields.get(kind, "")))
        self._peers.labels(kind).set(len(here))

    def collect(self, collector: Callable[[], Iterator[Metric]]) -> None:
        """Ask for more whenever the page is read; in a thread of its own."""
        self.registry.register(_Asked(collector))

    async def serve(self, host: str, port: int) -> Callable[[], "asyncio.Future[None]"]:
        """Serve the page; return what ends that.

        Raises:
            SettingError: The address cannot be taken.
        """
        try:
            server, thread = start_http_server(port, host, self.registry)
        except OSError as error:
            problem = f"cannot listen at {host}:{port}: {error.strerror}"
            raise SettingError("metrics", problem, "take another port") from error
        self.port = server.server_port

        def close() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return lambda: asyncio.ensure_future(asyncio.to_thread(close))


class _Asked(Collector):
    def __init__(self, collector: Callable[[], Iterator[Metric]]) -> None:
        self._collector = collector

    def collect(self) -> Iterator[Metric]:
        """Yield what is there now."""
        yield from self._collector()


def counted(
    core: Counts, links: Mapping[str, tuple[bool, Counts]], broker: Counts
) -> Iterator[Metric]:
    """Yield the counters of a core, of its links, and of its broker."""
    own = CounterMetricFamily("fedagent_counts", "Counters of the role.", labels=["name"])
    mine = tuple(f"{name}_" for name in (*links, "broker"))
    for name, value in dict(core).items():
        if not name.startswith(mine):
            own.add_metric([name], value)
    up = GaugeMetricFamily("fedagent_link_up", "Whether a link is up.", labels=["link"])
    of_link = CounterMetricFamily(
        "fedagent_link_counts",
        "Counters of a link: sent, received, bytes.",
        labels=["link", "name"],
    )
    for link, (connected, counts) in links.items():
        up.add_metric([link], connected)
        for name, value in dict(counts).items():
            of_link.add_metric([link, name], value)
    of_broker = CounterMetricFamily(
        "fedagent_broker_counts", "Counters of the own broker.", labels=["name"]
    )
    for name, value in dict(broker).items():
        of_broker.add_metric([name], value)
    yield from (own, up, of_link, of_broker)


def _number(value: object) -> float:
    return float(value) if isinstance(value, Real) else 0.0


def _version() -> str:
    with suppress(PackageNotFoundError):
        return version("fedagent")
    return ""
