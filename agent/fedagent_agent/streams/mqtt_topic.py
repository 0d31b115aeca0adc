"""A sensor's MQTT topic; its messages are samples, and so never logged."""

import asyncio
import math
import secrets
import threading
from collections import deque
from collections.abc import Sequence

import msgspec

from fedagent_node.errors import LinkError
from fedagent_node.link import Arrival, Link

from .base import BadSampleError, ResumableStream, RowReader, Samples, StreamSchema
from .kinds import Field, Mqtt
from .spec import StreamError

MAX_MESSAGE_BYTES = 64 * 1024
STOP_S = 3.0
_decoder = msgspec.json.Decoder(dict[str, object])


class MqttStream(ResumableStream):
    """Subscribe to a topic and keep what comes until it is taken.

    The link lives in an event loop of its own thread, because the trainer has none. A live topic
    has no past: there is nothing to resume, `offset` is 0. The threads share a deque and
    a counter, which nobody reads half changed.
    """

    def __init__(
        self, spec: Mqtt, *, seed: int = 0, offset: int = 0, labels: Sequence[str] = ()
    ) -> None:
        del seed, offset
        super().__init__(0)
        self._spec = spec
        self._fields, self._label = spec.fields, spec.label_field
        types = {field.dtype or "float64" for field in self._fields}
        self._dtype = types.pop() if len(types) == 1 else "float64"
        self._reader = RowReader(dtype=self._dtype, labels=labels)
        declared = {field.dtype for field in (*self._fields, self._label) if field.dtype}
        self._declared = {dtype: RowReader(dtype=dtype) for dtype in declared}
        self._rows: deque[tuple[list[float], float]] = deque(maxlen=spec.buffer)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: Link | None = None

    def open(self, now: float) -> StreamSchema:
        """Begin to connect in the background; the schema is what was declared."""
        del now
        self._link = Link(
            self._spec.address(),
            client_id=f"fedagent-stream-{secrets.token_hex(6)}",
            on_arrivals=self._arrived,
            on_state=lambda _: None,  # it logs changes itself
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
            raise StreamError("mqtt", str(error), "fix the stream's address") from error
        names = tuple(field.name for field in self._fields)
        return StreamSchema(len(names), self._dtype, names=names)

    def take(self, now: float) -> Samples:
        """Return the good messages since the last take."""
        del now
        rows = [self._rows.popleft() for _ in range(len(self._rows))]
        return self._reader.samples(rows, len(self._spec.features))

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
            self._counters["subscribe_refused"] += 1

    def _arrived(self, arrivals: list[Arrival]) -> None:
        """Read messages in the link's loop."""
        for arrival in arrivals:
            try:
                row = self._read(arrival.payload)
            except BadSampleError as error:
                self._counters[error.reason] += 1
            else:
                self._counters["dropped"] += len(self._rows) == self._rows.maxlen
                self._rows.append(row)

    def _read(self, payload: bytes) -> tuple[list[float], float]:
        if len(payload) > MAX_MESSAGE_BYTES:
            raise BadSampleError("bad_too_long")
        try:
            fields = _decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadSampleError("bad_json") from error
        labelled = self._label.name != "none"
        wanted = (*self._fields, self._label) if labelled else self._fields
        values = [self._value(field, fields.get(field.name)) for field in wanted]
        features = self._reader.features(values[: len(self._fields)])
        return features, self._reader.label(values[-1]) if labelled else math.nan

    def _value(self, field: Field, value: object) -> float | str:
        if not isinstance(value, int | float | str):
            raise BadSampleError("bad_missing" if value is None else "bad_number")
        if not field.dtype:
            return value
        # Text and true or false are no numbers here: who declares a type wants it kept.
        if isinstance(value, bool | str):
            raise BadSampleError("bad_dtype")
        if not field.least <= self._declared[field.dtype].features([value])[0] <= field.most:
            raise BadSampleError("bad_range")
        return value
