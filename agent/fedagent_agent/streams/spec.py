"""Where an agent's samples come from, as one line of text.

::

    digits                                    the bundled digits, replayed
    digits:labels=3+7,rate=20,start=50,part=1/4
    replay:PATH,labels=0+1,rate=5             a dataset file, replayed
    series:PATH,station=3,predict=TEMP_C      sensors of a station, hour by hour
    csv:PATH,label=last,features=a+b          a CSV file that is being appended
    mqtt://HOST:PORT/TOPIC?features=a,b&label=y    JSON messages of a sensor
    mqtt://USER:PASSWORD@HOST/TOPIC?…         the same, where the broker wants a password
    NAME:TEXT                                 your own: an entry point of `fedagent.streams`
"""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from fedagent_node.address import BrokerAddress
from fedagent_node.errors import AddressError

from .errors import StreamBrokenError, StreamError, StreamOpenError, StreamSpecError
from .kinds import DIGITS, CsvSpec, Field, MqttSpec, OwnSpec, ReplaySpec, SeriesSpec, StreamSpec
from .options import (
    EXAMPLES,
    buffer,
    flag,
    names,
    need,
    number,
    numbers,
    options_of,
    positive,
    whole,
)

__all__ = [
    "DIGITS",
    "DTYPES",
    "GROUP",
    "OPTIONS",
    "CsvSpec",
    "Field",
    "MqttSpec",
    "OwnSpec",
    "ReplaySpec",
    "SeriesSpec",
    "StreamBrokenError",
    "StreamError",
    "StreamOpenError",
    "StreamSpec",
    "StreamSpecError",
    "own_streams",
    "parse_stream",
]

DTYPES = ("float32", "float64", "uint8", "int16", "int32", "int64")
GROUP = "fedagent.streams"
"""Group of the entry points that are users' own streams."""
_DIGITS = ("labels", "rate", "start", "part", "buffer", "accelerate")
OPTIONS: dict[str, tuple[str, ...]] = {
    "digits": _DIGITS,
    "replay": (*_DIGITS, "order", "sparse", "width"),
    "series": (
        "station",
        "features",
        "predict",
        "ahead",
        "lags",
        "mean",
        "deviation",
        "rate",
        "accelerate",
        "start",
        "buffer",
    ),
    "csv": ("label", "features", "dtype", "buffer"),
    "mqtt": ("features", "label", "ca", "cert", "key", "insecure", "password_file", "buffer"),
}
"""The options of each kind."""
_MAX_FACTOR = 1e9


def parse_stream(text: str) -> StreamSpec:
    """Read the description of a stream.

    Raises:
        StreamSpecError: It is none; says which part, and what to write instead.
    """
    if len(text) > 4096 or not text.isprintable():
        raise StreamSpecError("stream", "is too long or not printable", f"write {EXAMPLES}")
    if text.startswith(("mqtt://", "mqtts://")):
        return _mqtt(text)
    kind, _, rest = text.strip().partition(":")
    if kind == "digits":
        return _replay(DIGITS, options_of(rest, OPTIONS["digits"]))
    path, _, more = rest.partition(",")
    match kind:
        case "replay":
            return _replay(need(path, "replay"), options_of(more, OPTIONS["replay"]))
        case "series":
            return _series(need(path, "series"), options_of(more, OPTIONS["series"]))
        case "csv":
            return _csv(need(path, "csv"), options_of(more, OPTIONS["csv"]))
        case _ if kind.isidentifier() and kind in own_streams():
            return OwnSpec(kind=kind, text=rest)
    raise StreamSpecError("stream", f"{kind[:40]!r} is no kind of stream", f"write {EXAMPLES}")


@cache
def own_streams() -> dict[str, EntryPoint]:
    """Return the entry points of users' own streams, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def _replay(dataset: str, options: dict[str, str]) -> ReplaySpec:
    default = ReplaySpec()
    index, _, count = options.get("part", "1/1").partition("/")
    part = (whole("part", index, 1, 10**6), whole("part", count or "0", 1, 10**6))
    if part[0] > part[1]:
        raise StreamSpecError("part", f"there is no part {part[0]} of {part[1]}", "write part=1/4")
    order = options.get("order", "seed")
    if order not in ("seed", "time"):
        raise StreamSpecError("order", f"{order[:40]!r} is no order", "write order=time")
    if order == "time" and "rate" in options:
        raise StreamSpecError(
            "rate", "the recorded times say when samples arrive", "write accelerate=60 instead"
        )
    labels = options.get("labels", "")
    return ReplaySpec(
        dataset=dataset,
        labels=tuple(whole("labels", item, 0, 10**6) for item in labels.split("+") if labels),
        rate=positive("rate", options, default.rate),
        start=whole("start", options.get("start", str(default.start)), 0, 10**6),
        part=part,
        buffer=buffer(options),
        accelerate=positive("accelerate", options, 1.0, _MAX_FACTOR),
        by_time=order == "time",
        sparse=flag("sparse", options),
        width=whole("width", options.get("width", "0"), 0, 10**8),
    )


def _series(path: str, options: dict[str, str]) -> SeriesSpec:
    features = names(options.get("features", ""))
    constants = {key: numbers(key, options.get(key, "")) for key in ("mean", "deviation")}
    for key, values in constants.items():
        if values and len(values) != len(features):
            raise StreamSpecError(
                key,
                f"has {len(values)} numbers for {len(features)} features",
                "name the features, and give one number for each, with + between",
            )
    if not all(constants["deviation"]):
        raise StreamSpecError("deviation", "is 0", "give numbers other than 0")
    if "predict" not in options:
        raise StreamSpecError("predict", "is not said", "write predict=COLUMN")
    return SeriesSpec(
        path=path,
        predict=options["predict"],
        station=options.get("station", "0"),
        features=features,
        ahead=whole("ahead", options.get("ahead", "1"), 1, 10**6),
        lags=whole("lags", options.get("lags", "24"), 1, 10**5),
        mean=constants["mean"],
        deviation=constants["deviation"],
        rate=positive("rate", options, 1.0),
        accelerate=positive("accelerate", options, 1.0, _MAX_FACTOR),
        start=whole("start", options.get("start", "0"), 0, 10**6),
        buffer=buffer(options),
    )


def _csv(path: str, options: dict[str, str]) -> CsvSpec:
    return CsvSpec(
        path=Path(path).expanduser(),
        label=need(options.get("label", "last"), "label"),
        features=names(options.get("features", "")),
        dtype=_dtype("dtype", options.get("dtype", "float64")),
        buffer=buffer(options),
    )


def _mqtt(text: str) -> MqttSpec:
    form = "mqtt://HOST:PORT/TOPIC?features=a,b&label=y"
    url = urlsplit(text)
    topic = unquote(url.path.lstrip("/"))
    if not url.netloc or not topic:
        raise StreamSpecError("mqtt", "needs a host and a topic", f"write {form}")
    try:
        broker = BrokerAddress.parse(f"{url.scheme}://{url.netloc}")
    except AddressError as error:
        if "@" in url.netloc:
            form = form.replace("HOST", "USER:PASSWORD@HOST") + ", with %40 for @ and %3A for :"
        raise StreamSpecError("mqtt", "is no address", f"write {form}") from error
    query = ",".join(f"{k}={v.replace(',', '+')}" for k, v in parse_qsl(url.query))
    options = options_of(query, OPTIONS["mqtt"])
    features = names(options.get("features", ""))
    if not features or "label" not in options:
        raise StreamSpecError("mqtt", "needs features and a label", f"write {form}")
    files = [Path(options[name]) for name in ("ca", "cert", "key") if name in options]
    if len(files) != (3 if url.scheme == "mqtts" else 0):
        raise StreamSpecError(
            "mqtt", "takes ca, cert and key exactly with mqtts", "add &ca=..&cert=..&key=.."
        )
    fields = [_field("features", item) for item in features]
    label = _field("label", options["label"])
    return MqttSpec(
        host=broker.host,
        port=broker.port,
        topic=topic,
        features=tuple(name for name, _ in fields),
        label=label[0],
        declared=tuple(field for _, field in (*fields, label) if field is not None),
        tls=(files[0], files[1], files[2]) if files else None,
        buffer=buffer(options),
        insecure=flag("insecure", options),
        user=broker.user,
        password=broker.password,
        password_file=options.get("password_file"),
    )


def _field(key: str, text: str) -> tuple[str, Field | None]:
    """Read ``NAME``, ``NAME:DTYPE`` or ``NAME:DTYPE:LEAST..MOST``; either end may be left out."""
    name, colon, rest = text.partition(":")
    if not name.strip():
        raise StreamSpecError(
            key, f"{text[:40]!r} has no name", f"write {key}=temp:float32:-40..60"
        )
    if not colon:
        return name, None
    dtype, _, span = rest.partition(":")
    field = Field(name, _dtype(key, dtype))
    if not span:
        return name, field
    least, dots, most = span.partition("..")
    if not dots:
        raise StreamSpecError(key, f"{span[:40]!r} is no range", f"write {name}:{dtype}:-40..60")
    hint = f"write {name}:{dtype}:-40..60"
    field = Field(
        name,
        field.dtype,
        number(key, least, hint) if least else field.least,
        number(key, most, hint) if most else field.most,
    )
    if field.least > field.most:
        raise StreamSpecError(key, f"the range {span[:40]} is empty", "put the smaller one first")
    return name, field


def _dtype(key: str, text: str) -> str:
    if text not in DTYPES:
        raise StreamSpecError(
            key, f"{text[:40]!r} is not known", f"write one of {', '.join(DTYPES)}"
        )
    return text
