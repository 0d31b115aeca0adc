"""The kinds of streams as text: their options, and what goes together. Without numpy."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Meta

from fedagent_node.address import BrokerAddress, TlsFiles
from fedagent_node.settings import SettingError, with_password
from fedagent_protocol.option import Option

from .spec import Buffer, StreamError, StreamSpec, made, no_kind, options_of

_DIGITS_PARTS = 100
"""The bundled digits have more samples of each label than that."""
_Index = Annotated[int, Meta(ge=1, le=10**6)]
_TOPIC = re.compile(r"(?:(?:\+|[^+#\0/]*)/)*(?:\+|#|[^+#\0/]+)")
"""What a broker takes: + is one level, # all that are left."""
_FORM = "mqtt://HOST:PORT/TOPIC?features=a,b&label=y"


class Digits(StreamSpec, frozen=True, kw_only=True):
    """The bundled training digits, arriving at random times again and again."""

    form: ClassVar[str] = "digits"
    stream: ClassVar[str] = "replay:ReplayStream"
    labels: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=10**6)], ...],
        Option("Only samples with these labels.", example="3+7"),
    ] = ()
    rate: Annotated[
        float, Meta(gt=0, le=1e6), Option("Arrivals per second, on average.", example="20")
    ] = 20.0
    start: Annotated[
        int,
        Meta(ge=0, le=10**6),
        Option("Samples that are available when the stream is first opened.", example="50"),
    ] = 50
    part: Annotated[
        tuple[_Index, _Index],
        Option("Only one of several equal parts (INDEX/COUNT), counted from 1.", example="1/4"),
    ] = (1, 1)
    buffer: Buffer = 4096

    def __post_init__(self) -> None:
        index, count = self.part
        if index > count:
            raise StreamError("part", f"there is no part {index} of {count}", "write part=1/4")

    @property
    def opened_at_start(self) -> bool:
        """Whether a file may be missing, or a filter fit nothing."""
        fits = set(range(10)).issuperset(self.labels) and self.part[1] <= _DIGITS_PARTS
        return super().opened_at_start or not fits


class Replay(Digits, frozen=True, kw_only=True):
    """A dataset file in the same way.

    `.npz` with `x` and `y`, `.csv`, IDX, LIBSVM, `u.data` (features: user and item, numbered
    from 1; label: the rating), all but npz also as `.gz`; no comma in the path.
    """

    form: ClassVar[str] = "replay:PATH"
    path: str
    sparse: Annotated[
        bool,
        Option(
            "A LIBSVM file as sparse rows, for linear, logistic, softmax and svm with "
            "`data.offset = 0`.",
            example="1",
        ),
    ] = False
    width: Annotated[
        int,
        Meta(ge=0, le=10**8),
        Option(
            "Number of features of a LIBSVM file, if its largest index is smaller.", example="123"
        ),
    ] = 0


class Csv(StreamSpec, frozen=True, kw_only=True):
    """A CSV file that is being appended, as spreadsheets and loggers write it: with `,`, `;`, tabs.

    A file that takes its place is read by the names of its own columns; no comma in the path.
    """

    form: ClassVar[str] = "csv:PATH"
    stream: ClassVar[str] = "csv_tail:CsvStream"
    path: str
    label: Annotated[
        str,
        Option(
            "Column of the label: `last`, `first`, a name, a number from 0, or `none` "
            "(to predict only).",
            example="last",
        ),
    ] = "last"
    features: Annotated[
        tuple[str, ...],
        Option(
            "Names of the feature columns; if left out, those that the recipe names in "
            "`data.features`, else all columns but the label.",
            example="a+b",
        ),
    ] = ()
    buffer: Buffer = 4096


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message, and between what its numbers are."""

    name: str
    least: float = -math.inf
    most: float = math.inf

    @classmethod
    def parse(cls, key: str, text: str) -> "Field":
        """Read ``NAME`` or ``NAME:LEAST..MOST``; an end may be left out.

        Raises:
            StreamError: It is neither; `key` is the option that it stands in.
        """
        name, _, span = text.partition(":")
        low, dots, high = (span or "..").partition("..")
        try:
            least, most = float(low or "-inf"), float(high or "inf")
        except ValueError:
            least = most = math.nan
        if not (least <= most and dots and name.strip()):
            hint = "write NAME, or NAME:LEAST..MOST"
            raise StreamError(key, f"{text[:40]!r} is no field", hint)
        return cls(name, least, most)


class Mqtt(StreamSpec, frozen=True, kw_only=True):
    """A sensor's topic; each message is a JSON object with numbers, or one number.

    `state.temperature` is a field in a field; on, off, true and false are 1 and 0. A field may have
    a range, as in `temp:-40..60`: messages that break it are counted (`bad_range`) and not used,
    and those that the broker kept from before are none.
    `mqtt://USER:PASSWORD@HOST/…` is for a broker that wants a password, percent-encoded.
    """

    form: ClassVar[str] = "mqtt://HOST:PORT/TOPIC?…&…"
    stream: ClassVar[str] = "mqtt_topic:MqttStream"
    broker: BrokerAddress
    topic: str
    features: Annotated[
        tuple[str, ...],
        Option("Fields to learn from, in order; else those of `data.features`.", example="a,b"),
    ] = ()
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
            url = urlsplit(f"{kind}:{text}".replace("#", "%23"))
            topic = unquote(url.path.lstrip("/"))
            if not url.netloc or not _TOPIC.fullmatch(topic):
                raise StreamError("mqtt", "needs a host and a topic", f"write {_FORM}")
            broker = BrokerAddress.parse(f"{kind}://{url.netloc}")
        except ValueError as error:
            form = _FORM
            if "@" in text:
                form = form.replace("HOST", "USER:PASSWORD@HOST")
                form += ", with %40 for @ and %3A for :"
            raise StreamError("mqtt", "is not an address", f"write {form}") from error
        query = ",".join(f"{k}={v.replace(',', '+')}" for k, v in parse_qsl(url.query))
        options = options_of(cls, query)
        if "label" not in options:
            raise StreamError("mqtt", "needs a label", f"write {_FORM}")
        if len({"ca", "cert", "key"} & options.keys()) != (3 if kind == "mqtts" else 0):
            reason = "needs ca, cert and key with mqtts, and takes none of them otherwise"
            raise StreamError("mqtt", reason, "add &ca=..&cert=..&key=..")
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

    def address(self) -> BrokerAddress:
        """Return the broker, with its password.

        Raises:
            StreamError: The password is nowhere, or would cross a network in plain text.
        """
        if self.broker.exposed and not self.insecure:
            hint = "add &insecure=1 in a network you trust, or mqtts:// with ca, cert and key"
            reason = f"{self.broker} is on another machine, and no certificates are configured"
            raise StreamError("mqtt", reason, hint)
        try:
            return with_password("mqtt", self.broker, self.password_file)
        except SettingError as error:
            raise StreamError(error.key, error.problem, error.hint) from error

    def check(self) -> None:
        """Look for the password."""
        self.address()

    def certificates(self) -> TlsFiles | None:
        """Return the certificate files, if there are any."""
        return TlsFiles(Path(self.ca), Path(self.cert), Path(self.key)) if self.ca else None


class Own(StreamSpec, frozen=True, kw_only=True):
    """Somebody's own stream: the name of an entry point, and text that its class reads."""

    form: ClassVar[str] = "NAME:TEXT"
    stream: ClassVar[str] = "own:OwnStream"
    kind: str
    text: str
    buffer: int = 4096
