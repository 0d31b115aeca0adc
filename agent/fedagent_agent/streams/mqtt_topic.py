"""A sensor's MQTT topic: each message is one JSON object with named numbers.

The link lives in an event loop of its own thread, because the trainer has none.
Messages are never logged: they are samples. What is wrong with them is counted.
"""

import asyncio
import math
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence

import msgspec

from fedagent_node.errors import LinkError
from fedagent_node.link import Arrival, Link

from .base import Samples, StreamSchema
from .errors import StreamOpenError
from .kinds import MqttSpec
from .rows import BadSampleError, RowReader, declared

MAX_MESSAGE_BYTES = 64 * 1024
STOP_S = 3.0
_decoder = msgspec.json.Decoder(dict[str, object])


class MqttStream:
    """Subscribe to a topic and keep what comes until it is taken.

    A live topic has no past: there is nothing to resume, `offset` is 0.

    Args:
        spec: Broker, topic and fields.
        client_id: Unique at the broker.
        labels: Names of the classes, where the label field holds names.
    """

    def __init__(self, spec: MqttSpec, *, client_id: str, labels: Sequence[str] = ()) -> None:
        self._spec = spec
        self._reader = RowReader(dtype=spec.dtype, labels=labels)
        self._client_id = client_id
        self._lock = threading.Lock()
        self._rows: deque[tuple[list[float], float]] = deque(maxlen=spec.buffer)
        self._counters: Counter[str] = Counter()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: Link | None = None

    def open(self, now: float) -> StreamSchema:
        """Begin to connect in the background; the schema is what was declared."""
        del now
        self._link = Link(
            self._spec.address(),
            client_id=self._client_id,
            on_arrivals=self._arrived,
            on_state=_ignore,
            tls=self._spec.certificates(),
            insecure=self._spec.insecure,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="sensor-stream", daemon=True
        )
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._start(self._link), self._loop).result(STOP_S)
        except (LinkError, TimeoutError) as error:
            self.close()
            raise StreamOpenError("mqtt", str(error), "fix the stream's address") from error
        names = self._spec.features
        return StreamSchema(len(names), self._spec.dtype, names=names)

    def take(self, now: float) -> Samples:
        """Return the good messages since the last take."""
        del now
        with self._lock:
            rows = list(self._rows)
            self._rows.clear()
        return self._reader.samples(rows, len(self._spec.features))

    @property
    def offset(self) -> int:
        """Always 0."""
        return 0

    @property
    def counters(self) -> Mapping[str, int]:
        """Bad messages by reason, and drops."""
        with self._lock:
            return dict(self._counters)

    def close(self) -> None:
        """Disconnect and end the thread."""
        loop, thread, link = self._loop, self._thread, self._link
        self._loop = self._thread = self._link = None
        if loop is None or thread is None or link is None:
            return
        stopping = asyncio.run_coroutine_threadsafe(link.stop(), loop)
        try:
            stopping.result(STOP_S)
        except TimeoutError:
            stopping.cancel()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(STOP_S)
        if not thread.is_alive():
            loop.close()

    async def _start(self, link: Link) -> None:
        await link.start()
        link.subscribe(self._spec.topic).add_done_callback(self._subscribed)

    def _subscribed(self, answer: "asyncio.Future[None]") -> None:
        if not answer.cancelled() and answer.exception() is not None:
            with self._lock:
                self._counters["subscribe_refused"] += 1

    def _arrived(self, arrivals: list[Arrival]) -> None:
        """Read messages in the link's loop."""
        for arrival in arrivals:
            try:
                row = self._read(arrival.payload)
            except BadSampleError as error:
                with self._lock:
                    self._counters[error.reason] += 1
            else:
                with self._lock:
                    self._counters["dropped"] += len(self._rows) == self._rows.maxlen
                    self._rows.append(row)

    def _read(self, payload: bytes) -> tuple[list[float], float]:
        if len(payload) > MAX_MESSAGE_BYTES:
            raise BadSampleError("bad_too_long")
        try:
            fields = _decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadSampleError("bad_json") from error
        for field in self._spec.declared:
            declared(field, _scalar(fields, field.name))
        features = self._reader.features([_scalar(fields, n) for n in self._spec.features])
        if self._spec.label == "none":
            return features, math.nan
        return features, self._reader.label(_scalar(fields, self._spec.label))


def _scalar(fields: Mapping[str, object], name: str) -> float | str:
    value = fields.get(name)
    if isinstance(value, int | float | str):
        return value
    raise BadSampleError("bad_missing" if value is None else "bad_number")


def _ignore(_connected: bool) -> None:
    """Take the link's state; it logs changes itself."""
