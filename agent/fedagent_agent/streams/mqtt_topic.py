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
from fedagent_task.readers.table import SampleError, number_of
from fedagent_task.recipe.spec import DataSpec

from .base import (
    Row,
    Samples,
    Stream,
    StreamSchema,
    finite,
    label_of,
    samples_of,
)
from .kinds import Field, Mqtt
from .spec import StreamError

MAX_MESSAGE_BYTES = 64 * 1024
STOP_S = 3.0


class MqttStream(Stream):
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
        self._refused = ""  # why the broker refuses the topic

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
        """Return the good messages since the last take.

        Raises:
            StreamError: The broker refuses the topic, or no message is a sample.
        """
        del now
        if self._refused:
            raise StreamError("mqtt", self._refused, "let the stream's user read the topic")
        self._expect_one("mqtt", "message")
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
        self._refused = "" if answer.cancelled() else str(answer.exception() or "")

    def _arrived(self, arrivals: list[Arrival]) -> None:
        """Read messages in the link's loop; one that was kept by the broker is an old one."""
        for arrival in arrivals:
            try:
                if not arrival.retained:
                    self._keep(self._sample(arrival.payload), self._rows)
            except SampleError as error:
                self._refuse(error)

    def _sample(self, payload: bytes) -> Row:
        hint = "have it publish a JSON object with numbers, or one number"
        if len(payload) > MAX_MESSAGE_BYTES:
            raise SampleError("bad_too_long", "a message", "is too long", hint)
        try:
            text = text_of(payload)
            message = msgspec.json.decode(text) if number_of(text) is None else text
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise SampleError(
                "bad_json", "a message", "is neither JSON nor a number", hint
            ) from error
        numbers = [self._number(field, message) for field in self._fields]
        return numbers, math.nan if self._label is None else self._number(self._label, message)

    def _number(self, field: Field, message: object) -> float:
        """Return the number of a field; a message that is one is that of a stream's only field."""
        what = f"field {field.name!r}"
        alone = not isinstance(message, dict) and len(self._fields) == 1 and self._label is None
        value = message if alone else _found(message, field.name)
        if value is None:
            raise SampleError("bad_missing", what, "is missing", "name fields as messages do")
        try:
            text = value if isinstance(value, str) else str(float(value))  # type: ignore[arg-type]
        except (TypeError, OverflowError):
            text = ""
        if field is self._label:
            number: float | None = label_of(text, self._names, what)
        else:
            number = number_of(text)
        if number is None:
            hint = "have it published without a unit, or name a field in it: state.temperature"
            raise SampleError("bad_number", what, "is not a number", hint)
        finite([number])
        if not field.least <= number <= field.most:
            hint = "widen the field's range"
            raise SampleError("bad_range", what, "is out of its range", hint)
        return number


def _found(message: object, name: str) -> object:
    """Return what a message has at ``field`` or ``field.in.it``; None for nothing."""
    if not isinstance(message, dict) or name in message:
        return message.get(name) if isinstance(message, dict) else None
    first, _, rest = name.partition(".")
    return _found(message.get(first), rest) if rest else None
