"""Where an agent's samples come from, as one line of text.

::

    digits                                    the bundled digits, replayed
    digits:labels=3+7,rate=20,start=50,part=1/4
    replay:PATH,labels=0+1,rate=5             a dataset file, replayed
    csv:PATH,label=last,features=a+b          a CSV file that is being appended
    mqtt://HOST:PORT/TOPIC?features=a,b&label=y    JSON messages of a sensor
"""

import difflib
import math
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

DIGITS = "digits-train"
DTYPES = ("float32", "float64", "uint8", "int16", "int32", "int64")
_EXAMPLES = "digits:labels=3+7,rate=20, csv:PATH,label=last or mqtt://HOST:PORT/TOPIC?features=a,b"


class StreamError(Exception):
    """Base of the errors of streams; one line that names the mend.

    Attributes:
        key: Option or part of the stream that is wrong.
        reason: What is wrong.
        mend: What to write instead.
    """

    def __init__(self, key: str, reason: str, mend: str) -> None:
        super().__init__(key, reason, mend)
        self.key = key
        self.reason = reason
        self.mend = mend

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}; {self.mend}"


class StreamSpecError(StreamError):
    """Raised when text describes no stream."""


class StreamOpenError(StreamError):
    """Raised when a stream that is well described cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySpec:
    """A dataset that arrives as a Poisson process, in seeded order, again and again.

    Attributes:
        dataset: A bundled name or a path.
        labels: Only samples with these labels; empty for all.
        rate: Arrivals per second, on average.
        start: Samples that are there when the stream is opened first.
        part: (i, n): only the i-th of n equal parts, from 1.
        buffer: Most samples kept between two takes; the newest stay.
    """

    dataset: str = DIGITS
    labels: tuple[int, ...] = ()
    rate: float = 20.0
    start: int = 50
    part: tuple[int, int] = (1, 1)
    buffer: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvSpec:
    """A CSV file that is being appended.

    Attributes:
        path: The file.
        label: Column of the label: ``last``, ``first``, a name, or a number from 0.
        features: Names of the columns to learn from; empty for all others.
        dtype: Numpy name of the type that the numbers must fit.
        buffer: Most samples of one take; the newest stay.
    """

    path: Path
    label: str = "last"
    features: tuple[str, ...] = ()
    dtype: str = "float64"
    buffer: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttSpec:
    """A sensor's topic; each message is one JSON object with named numbers.

    Attributes:
        topic: MQTT topic or filter.
        features: Fields to learn from, in order.
        label: Field of the label.
        tls: PEM files (ca, certificate, key) of an ``mqtts`` broker.
        buffer: Most samples kept between two takes; the newest stay.
    """

    host: str
    port: int
    topic: str
    features: tuple[str, ...]
    label: str
    tls: tuple[Path, Path, Path] | None = None
    buffer: int = 4096


StreamSpec = ReplaySpec | CsvSpec | MqttSpec


def parse_stream(text: str) -> StreamSpec:
    """Read the description of a stream.

    Raises:
        StreamSpecError: It is none; says which part, and what to write instead.
    """
    if len(text) > 4096 or not text.isprintable():
        raise StreamSpecError("stream", "is too long or not printable", f"write {_EXAMPLES}")
    if text.startswith(("mqtt://", "mqtts://")):
        return _mqtt(text)
    kind, _, rest = text.strip().partition(":")
    match kind:
        case "digits":
            return _replay(DIGITS, _options(rest, ("labels", "rate", "start", "part", "buffer")))
        case "replay":
            path, _, options = rest.partition(",")
            known = ("labels", "rate", "start", "part", "buffer")
            return _replay(_need(path, "replay"), _options(options, known))
        case "csv":
            path, _, options = rest.partition(",")
            return _csv(
                _need(path, "csv"), _options(options, ("label", "features", "dtype", "buffer"))
            )
        case _:
            raise StreamSpecError(
                "stream", f"{kind[:40]!r} is no kind of stream", f"write {_EXAMPLES}"
            )


def _replay(dataset: str, options: dict[str, str]) -> ReplaySpec:
    default = ReplaySpec()
    index, _, count = options.get("part", "1/1").partition("/")
    part = (_whole("part", index, 1, 10**6), _whole("part", count or "0", 1, 10**6))
    if part[0] > part[1]:
        raise StreamSpecError("part", f"there is no part {part[0]} of {part[1]}", "write part=1/4")
    labels = options.get("labels", "")
    return ReplaySpec(
        dataset=dataset,
        labels=tuple(_whole("labels", item, 0, 10**6) for item in labels.split("+") if labels),
        rate=_rate(options.get("rate", str(default.rate))),
        start=_whole("start", options.get("start", str(default.start)), 0, 10**6),
        part=part,
        buffer=_buffer(options),
    )


def _csv(path: str, options: dict[str, str]) -> CsvSpec:
    dtype = options.get("dtype", "float64")
    if dtype not in DTYPES:
        raise StreamSpecError(
            "dtype", f"{dtype!r} is not known", f"write one of {', '.join(DTYPES)}"
        )
    features = options.get("features", "")
    return CsvSpec(
        path=Path(path).expanduser(),
        label=_need(options.get("label", "last"), "label"),
        features=tuple(features.split("+")) if features else (),
        dtype=dtype,
        buffer=_buffer(options),
    )


def _mqtt(text: str) -> MqttSpec:
    form = "mqtt://HOST:PORT/TOPIC?features=a,b&label=y"
    try:
        url = urlsplit(text)
        host, port = url.hostname or "", url.port
    except ValueError as error:
        raise StreamSpecError("mqtt", "is no address", f"write {form}") from error
    topic = unquote(url.path.lstrip("/"))
    if not host or not topic or url.username is not None:
        raise StreamSpecError("mqtt", "needs a host and a topic", f"write {form}")
    query = ",".join(f"{k}={v.replace(',', '+')}" for k, v in parse_qsl(url.query))
    options = _options(query, ("features", "label", "ca", "cert", "key", "buffer"))
    features = tuple(item for item in options.get("features", "").split("+") if item)
    if not features or "label" not in options:
        raise StreamSpecError("mqtt", "needs features and a label", f"write {form}")
    files = [Path(options[name]) for name in ("ca", "cert", "key") if name in options]
    if len(files) != (3 if url.scheme == "mqtts" else 0):
        raise StreamSpecError(
            "mqtt", "takes ca, cert and key exactly with mqtts", "add &ca=..&cert=..&key=.."
        )
    return MqttSpec(
        host=host,
        port=port or (8883 if files else 1883),
        topic=topic,
        features=features,
        label=options["label"],
        tls=(files[0], files[1], files[2]) if files else None,
        buffer=_buffer(options),
    )


def _options(text: str, known: tuple[str, ...]) -> dict[str, str]:
    options: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        name = name.strip()
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            mend = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise StreamSpecError(name[:40] or "stream", "is no option here", mend)
        if not equals or not value.strip():
            raise StreamSpecError(name, "has no value", f"write {name}=...")
        options[name] = value.strip()
    return options


def _whole(key: str, text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or not least <= int(text[:20]) <= most:
        example = {"labels": "labels=3+7", "part": "part=1/4"}.get(key, f"{key}={least + 50}")
        raise StreamSpecError(
            key, f"{text[:40]!r} is no number from {least} to {most}", f"write {example}"
        )
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate <= 1e6:
        raise StreamSpecError("rate", f"{text[:40]!r} is no number over 0", "write rate=20")
    return rate


def _buffer(options: dict[str, str]) -> int:
    return _whole("buffer", options.get("buffer", "4096"), 1, 10**6)


def _need(text: str, key: str) -> str:
    if not text.strip():
        raise StreamSpecError(key, "has no value", f"write {_EXAMPLES}")
    return text.strip()
