"""What a role has counted, for Prometheus: `--metrics [HOST:]PORT`, an HTTP page in plain text.

Only counts leave: no names of samples, no reasons in a device's own words. Needs the extra
``metrics``; what is not asked for costs nothing.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
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

from fedagent_protocol import VERSION

from .effects import Emit
from .network import listen_hint
from .settings import SettingError

PEERS = ("agent", "edge", "coordinator")
SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0)
"""Upper ends of the classes of a round's duration."""
MODEL_METRICS = frozenset(
    ("accuracy", "loss", "rmse", "mae", "device_score", "train_loss", "train_error")
)


class Metrics(Collector):
    """The metrics of one process: fed by its events, and by `read`, which is asked in a thread.

    `read` returns the counters of the role, in which those of a link or of the broker begin with
    its name, and which link is up.
    """

    def __init__(
        self,
        role: str,
        ident: str,
        read: Callable[[], tuple[Mapping[str, int], Mapping[str, bool]]],
    ) -> None:
        self._read = read
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(self)
        about = {"role": role, "id": ident, "version": VERSION}
        Info("fedagent", "This process.", registry=registry).info(about)
        self._events = Counter("fedagent_events", "Events.", ["event"], registry=registry)
        self._rounds = Counter("fedagent_rounds", "Rounds ended.", ["used"], registry=registry)
        self._updates = Counter("fedagent_updates", "By outcome.", ["outcome"], registry=registry)
        self._seconds = Histogram(
            "fedagent_round_seconds", "Duration of rounds.", buckets=SECONDS, registry=registry
        )
        self._round = Gauge("fedagent_round", "Newest round.", registry=registry)
        self._spent = Gauge("fedagent_spent_credits", "Credits paid.", registry=registry)
        self._model = Gauge("fedagent_model", "Newest score.", ["metric"], registry=registry)
        self._peers = Gauge("fedagent_peers", "Connected peers.", ["kind"], registry=registry)
        self._here: dict[str, set[str]] = {kind: set() for kind in PEERS}

    def note(self, event: Emit) -> None:
        """Take in one event of the role."""
        name, fields = event.name, event.fields
        self._events.labels(name).inc()
        kind, _, how = name.rpartition("_")
        if name in {"round", "round_closed"}:
            self._rounds.labels("yes" if fields["used"] else "no").inc()
            self._round.set(_number(fields["round"]))
            self._seconds.observe(_number(fields.get("seconds")))
            for outcome in ("ordered", "in_time", "used"):
                self._updates.labels(outcome).inc(_number(fields[outcome]))
            if "total_spent_micro" in fields:
                self._spent.set(_number(fields["total_spent_micro"]) / 1e6)
        elif name == "receipt":
            self._updates.labels(str(fields["status"])).inc()
        elif name in {"ordered", "declined"}:
            self._updates.labels(name).inc()
        elif kind in self._here and how in {"joined", "lost"}:
            here, who = self._here[kind], str(fields.get(kind, ""))
            (here.add if how == "joined" else here.discard)(who)
            self._peers.labels(kind).set(len(here))
        if name in {"round", "model", "end"}:
            for metric in MODEL_METRICS & fields.keys():
                if isinstance(value := fields[metric], Real):
                    self._model.labels(metric).set(float(value))

    def collect(self) -> Iterator[Metric]:
        """Yield what was counted until now."""
        counters, links = self._read()
        own = CounterMetricFamily("fedagent_counts", "Counters of the role.", labels=["name"])
        for key, value in dict(counters).items():
            own.add_metric([key], value)
        up = GaugeMetricFamily("fedagent_link_up", "Whether a link is up.", labels=["link"])
        for link, connected in links.items():
            up.add_metric([link], connected)
        yield from (own, up)

    async def serve(self, host: str, port: int) -> Callable[[], "asyncio.Future[None]"]:
        """Serve the page; return what ends that.

        Raises:
            SettingError: The address cannot be taken.
        """
        try:
            server, thread = start_http_server(port, host, self.registry)
        except OSError as error:
            problem = f"cannot listen at {host}:{port}: {error.strerror}"
            hint = listen_hint(host, "take another port")
            raise SettingError("metrics", problem, hint) from error
        self.port = server.server_port

        def close() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return lambda: asyncio.ensure_future(asyncio.to_thread(close))


def _number(value: object) -> float:
    return float(value) if isinstance(value, Real) else 0.0
