"""A sensor's MQTT topic; its messages are samples, and so never logged."""

import asyncio
import math
import secrets
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Self, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from fedagent_node.address import BrokerAddress, TlsFiles
from fedagent_node.errors import AddressError, LinkError
from fedagent_node.link import Arrival, Link
from fedagent_node.settings import SettingError, with_password
from fedagent_protocol.option import Option

from .base import (
    BadSampleError,
    RowReader,
    Samples,
    StreamOpenError,
    StreamSchema,
    StreamSpecError,
    np,
)
from .spec import Buffer, DType, StreamSpec, made, no_kind, number, options_of

MAX_MESSAGE_BYTES = 64 * 1024
STOP_S = 3.0
_FORM = "mqtt://HOST:PORT/TOPIC?features=a,b&label=y"
_decoder = msgspec.json.Decoder(dict[str, object])


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message; `dtype` is the numpy name of a type, empty if none is declared."""

    name: str
    dtype: str = ""
    least: float = -math.inf
    most: float = math.inf

    @classmethod
    def parse(cls, key: str, text: str) -> "Field":
        """Read ``NAME``, ``NAME:DTYPE`` or ``NAME:DTYPE:LEAST..MOST``; an end may be left out.

        Raises:
            StreamSpecError: It is none of these; `key` is the option that it stands in.
        """
        name, colon, rest = text.partition(":")
        dtype, _, span = rest.partition(":")
        if not name.strip():
            hint = f"write {key}=temp:float32:-40..60"
            raise StreamSpecError(key, f"{text[:40]!r} has no name", hint)
        if colon and dtype not in get_args(DType):
            hint = f"write one of {', '.join(get_args(DType))}"
            raise StreamSpecError(key, f"{dtype[:40]!r} is not known", hint)
        if not span:
            return cls(name, dtype)
        least, dots, most = span.partition("..")
        hint = f"write {name}:{dtype}:-40..60"
        if not dots:
            raise StreamSpecError(key, f"{span[:40]!r} is not a range", hint)
        ends = []
        for end, unset in ((least, -math.inf), (most, math.inf)):
            value = number(end) if end else unset
            if value is None:
                raise StreamSpecError(key, f"{end[:40]!r} is not a number", hint)
            ends.append(value)
        if ends[0] > ends[1]:
            reason = f"the range {span[:40]} is empty"
            raise StreamSpecError(key, reason, "put the smaller one first")
        return cls(name, dtype, *ends)

    def check(self, value: float | str) -> None:
        """Raise `BadSampleError` unless a message's value is what is declared.

        Text and true or false are no numbers here: who declares a type wants it kept.
        """
        if not self.dtype:
            return
        if isinstance(value, bool | str):
            raise BadSampleError("bad_dtype")
        try:
            finite = math.isfinite(value)
        except OverflowError:  # a whole number of hundreds of digits
            raise BadSampleError("bad_dtype") from None
        if not finite:
            raise BadSampleError("bad_not_finite")
        dtype = np.dtype(self.dtype)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            fits = value == int(value) and limits.min <= value <= limits.max
        else:
            fits = abs(value) <= float(np.finfo(dtype).max)
        if not fits:
            raise BadSampleError("bad_dtype")
        if not self.least <= value <= self.most:
            raise BadSampleError("bad_range")


class Mqtt(StreamSpec, frozen=True, kw_only=True):
    """A sensor's topic; each message is one JSON object with named numbers.

    A field may declare its type and range, as in `temp:float32:-40..60`: messages that break it
    are counted (`bad_dtype`, `bad_range`) and not used. `mqtt://USER:PASSWORD@HOST/…` is for a
    broker that wants a password, percent-encoded.
    """

    form: ClassVar[str] = "mqtt://HOST:PORT/TOPIC?…&…"
    broker: BrokerAddress
    topic: str
    features: Annotated[
        tuple[str, ...], Option("Fields to learn from, in order; required.", example="a,b")
    ]
    label: Annotated[
        str,
        Option("Field of the label, or `none` (to predict only); required.", example="y"),
    ]
    ca: Annotated[str, Option("PEM file of the authority, with `mqtts://`.", example="FILE")] = ""
    cert: Annotated[str, Option("PEM file of this device's certificate.", example="FILE")] = ""
    key: Annotated[str, Option("PEM file of this device's private key.", example="FILE")] = ""
    insecure: Annotated[
        bool, Option("Allow a broker on another machine without certificates.", example="1")
    ] = False
    password_file: Annotated[
        str | None,
        Option("Password of `USER`; else `$FEDAGENT_MQTT_PASSWORD`.", example="FILE"),
    ] = None
    buffer: Buffer = 4096

    @classmethod
    def read(cls, kind: str, text: str) -> Self:
        """Return the stream of a URL."""
        if not text.startswith("//"):
            raise no_kind(kind)
        try:
            url = urlsplit(f"{kind}:{text}")
            topic = unquote(url.path.lstrip("/"))
            if not url.netloc or not topic:
                raise StreamSpecError("mqtt", "needs a host and a topic", f"write {_FORM}")
            broker = BrokerAddress.parse(f"{kind}://{url.netloc}")
        except (AddressError, ValueError) as error:  # urlsplit's own, of brackets
            form = _FORM
            if "@" in text:
                form = form.replace("HOST", "USER:PASSWORD@HOST")
                form += ", with %40 for @ and %3A for :"
            raise StreamSpecError("mqtt", "is not an address", f"write {form}") from error
        query = ",".join(f"{k}={v.replace(',', '+')}" for k, v in parse_qsl(url.query))
        options = options_of(cls, query)
        if not {"features", "label"} <= options.keys() or not options["features"].strip("+ "):
            raise StreamSpecError("mqtt", "needs features and a label", f"write {_FORM}")
        if len({"ca", "cert", "key"} & options.keys()) != (3 if kind == "mqtts" else 0):
            reason = "needs ca, cert and key with mqtts, and takes none of them otherwise"
            raise StreamSpecError("mqtt", reason, "add &ca=..&cert=..&key=..")
        return made(cls, options, broker=broker, topic=topic)

    def __post_init__(self) -> None:
        _ = self.fields, self.label_field  # what is no field is refused here

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields to learn from."""
        return tuple(Field.parse("features", text) for text in self.features)

    @property
    def label_field(self) -> Field:
        """The field of the label; its name may be ``none``."""
        return Field.parse("label", self.label)

    @property
    def dtype(self) -> str:
        """The type that all features have; float64 where they differ or declare none."""
        types = {field.dtype or "float64" for field in self.fields}
        return types.pop() if len(types) == 1 else "float64"

    def address(self) -> BrokerAddress:
        """Return the broker, with its password.

        Raises:
            StreamOpenError: The password is nowhere, or would cross a network in plain text.
        """
        if self.broker.exposed and not self.insecure:
            hint = "add &insecure=1 in a network you trust, or mqtts:// with ca, cert and key"
            reason = f"{self.broker} is on another machine, and no certificates are configured"
            raise StreamOpenError("mqtt", reason, hint)
        try:
            return with_password("mqtt", self.broker, self.password_file)
        except SettingError as error:
            raise StreamOpenError(error.key, error.problem, error.hint) from error

    def check(self) -> None:
        """Look for the password."""
        self.address()

    def certificates(self) -> TlsFiles | None:
        """Return the certificate files, if there are any."""
        return TlsFiles(Path(self.ca), Path(self.cert), Path(self.key)) if self.ca else None

    def create(self, *, seed: int, offset: int = 0, labels: Sequence[str] = ()) -> "MqttStream":
        """Return the stream; it has no order and no past."""
        del seed, offset
        return MqttStream(self, labels=labels)


class MqttStream:
    """Subscribe to a topic and keep what comes until it is taken.

    The link lives in an event loop of its own thread, because the trainer has none. A live topic
    has no past: there is nothing to resume, `offset` is 0.
    """

    def __init__(self, spec: Mqtt, *, labels: Sequence[str] = ()) -> None:
        self._spec = spec
        self._fields, self._label = spec.fields, spec.label_field
        self._reader = RowReader(dtype=spec.dtype, labels=labels)
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
            client_id=f"fedagent-stream-{secrets.token_hex(6)}",
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
        names = tuple(field.name for field in self._fields)
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
        labelled = self._label.name != "none"
        wanted = (*self._fields, self._label) if labelled else self._fields
        values = [_scalar(fields, field.name) for field in wanted]
        for field, value in zip(wanted, values, strict=True):
            field.check(value)
        features = self._reader.features(values[: len(self._fields)])
        return features, self._reader.label(values[-1]) if labelled else math.nan


def _scalar(fields: Mapping[str, object], name: str) -> float | str:
    value = fields.get(name)
    if isinstance(value, int | float | str):
        return value
    raise BadSampleError("bad_missing" if value is None else "bad_number")


def _ignore(_connected: bool) -> None:
    """Take the link's state; it logs changes itself."""
