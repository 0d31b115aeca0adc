"""A sensor's MQTT topic; its messages are samples, and so never logged."""

import asyncio
import math
import secrets
import threading
from collections import deque

import msgspec

from fedagent_node.errors import LinkError
from fedagent_node.link import Arrival, Link
from fedagent_protocol.errors import text_of
from fedagent_task.readers.table import number_of
from fedagent_task.recipe.spec import DataSpec

from .base import (
    BadSampleError,
    ResumableStream,
    Row,
    Samples,
    StreamSchema,
    finite,
    label_of,
    samples_of,
)
from .kinds import Field, Mqtt
from .spec import StreamError

MAX_MESSAGE_BYTES = 64 * 1024
STOP_S = 3.0


class MqttStream(ResumableStream):
    """Subscribe to a topic and keep what comes until it is taken.

    The link lives in an event loop of its own thread, because the trainer has none. A live topic
    has no past: there is nothing to resume, `offset` is 0. The threads share a deque and
    a counter, which nobody reads half changed.
    """

    def __init__(self, spec: Mqtt, *, seed: int, offset: int, mark: str, data: DataSpec) -> None:
        del seed, offset, mark
        super().__init__(0)
        self._spec, self._names = spec, data.labels
        self._fields = spec.fields or tuple(Field(one.name) for one in data.features)
        self._label = None if spec.label == "none" else spec.label_field
        self._rows: deque[Row] = deque(maxlen=spec.buffer)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: Link | None = None

    def open(self, now: float) -> StreamSchema:
        """Begin to connect in the background; the schema is what was declared."""
        del now
        if not self._fields:
            hint = "write features=a,b, or name them in data.features of the recipe"
            raise StreamError("features", "are named by neither stream nor recipe", hint)
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
        return StreamSchema(len(names), names=names)

    def take(self, now: float) -> Samples:
        """Return the good messages since the last take."""
        del now
        rows = [self._rows.popleft() for _ in range(len(self._rows))]
        return samples_of(rows, len(self._fields))

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

    def _read(self, payload: bytes) -> Row:
        if len(payload) > MAX_MESSAGE_BYTES:
            raise BadSampleError("bad_too_long")
        try:
            text = text_of(payload)
            message = msgspec.json.decode(text) if number_of(text) is None else text
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise BadSampleError("bad_json") from error
        numbers = finite([self._number(field, message) for field in self._fields])
        if self._label is None:
            return numbers, math.nan
        said = _found(message, self._label.name)
        if isinstance(said, str) and said in self._names:
            return numbers, label_of(said, self._names)
        return numbers, self._number(self._label, message)

    def _number(self, field: Field, message: object) -> float:
        """Return the number of a field; a message that is one is that of a stream's only field."""
        alone = not isinstance(message, dict) and len(self._fields) == 1 and self._label is None
        value = message if alone else _found(message, field.name)
        if not isinstance(value, int | float | str):
            raise BadSampleError("bad_missing" if value is None else "bad_number")
        try:
            number = number_of(value) if isinstance(value, str) else float(value)
        except OverflowError:
            number = None
        if number is None:
            raise BadSampleError("bad_number" if field is not self._label else "bad_label")
        if not field.least <= number <= field.most:
            raise BadSampleError("bad_range")
        return number


def _found(message: object, name: str) -> object:
    """Return what a message has at ``field`` or ``field.in.it``; None for nothing."""
    if not isinstance(message, dict) or name in message:
        return message.get(name) if isinstance(message, dict) else None
    first, _, rest = name.partition(".")
    return _found(message.get(first), rest) if rest else None
