"""What each kind of stream is made of. Imports no numpy: the agent itself needs none."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fedagent_node.address import BrokerAddress, TlsFiles
from fedagent_node.settings import SettingError, with_password

from .errors import StreamOpenError

DIGITS = "digits-train"


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
        accelerate: How much faster than recorded, or than `rate` says, it arrives.
        by_time: In the order and at the times that the dataset has recorded.
        sparse: Keep a LIBSVM file's rows sparse.
        width: Features of a LIBSVM file; 0 for its largest index.
    """

    dataset: str = DIGITS
    labels: tuple[int, ...] = ()
    rate: float = 20.0
    start: int = 50
    part: tuple[int, int] = (1, 1)
    buffer: int = 4096
    accelerate: float = 1.0
    by_time: bool = False
    sparse: bool = False
    width: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesSpec:
    """Sensors of one station, hour by hour: learn to predict one of them.

    A sample is `lags` readings of each feature, oldest first, as ``(value - mean) /
    deviation``; its label is the reading of `predict`, `ahead` readings after the newest.

    Attributes:
        path: An ``.npz`` with ``values`` [station, time, sensor] and ``columns``.
        station: Its name, or its number from 0.
        features: Names of columns; empty for all.
        predict: Name of a column.
        mean: One number for each feature; empty for 0.
        deviation: The same; empty for 1.
        rate: Readings per second, evenly spaced.
        start: Readings that are there when the stream is opened first.
        buffer: Most samples kept between two takes; the newest stay.
    """

    path: str
    predict: str
    station: str = "0"
    features: tuple[str, ...] = ()
    ahead: int = 1
    lags: int = 24
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    rate: float = 1.0
    accelerate: float = 1.0
    start: int = 0
    buffer: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvSpec:
    """A CSV file that is being appended.

    Attributes:
        path: The file.
        label: Column of the label: ``last``, ``first``, a name, a number from 0, or ``none``.
        features: Names of the columns to learn from; empty for all others.
        dtype: Numpy name of the type that the numbers must fit.
        buffer: Most samples of one take; the newest stay.
    """

    path: Path
    label: str = "last"
    features: tuple[str, ...] = ()
    dtype: str = "float64"
    buffer: int = 4096


@dataclass(frozen=True, slots=True)
class Field:
    """What one field of a message must be.

    Attributes:
        dtype: Numpy name of a type; a message with another kind of number is not used.
        least: Smallest value that can be right.
        most: Largest value that can be right.
    """

    name: str
    dtype: str
    least: float = -math.inf
    most: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttSpec:
    """A sensor's topic; each message is one JSON object with named numbers.

    Attributes:
        topic: MQTT topic or filter.
        features: Fields to learn from, in order.
        label: Field of the label, or ``none``.
        declared: Types and ranges of those fields that have any.
        tls: PEM files (ca, certificate, key) of an ``mqtts`` broker.
        insecure: The broker is beyond this machine and has no certificates.
        user: Whom the broker knows us as; empty for nobody.
        password: None where a file or the environment has it.
        buffer: Most samples kept between two takes; the newest stay.
    """

    host: str
    port: int
    topic: str
    features: tuple[str, ...]
    label: str
    declared: tuple[Field, ...] = ()
    tls: tuple[Path, Path, Path] | None = None
    buffer: int = 4096
    insecure: bool = False
    user: str = field(default="", repr=False)
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None

    def address(self) -> BrokerAddress:
        """Return the broker, with its password.

        Raises:
            StreamOpenError: The password is nowhere, or would be told to a whole network.
        """
        scheme: Literal["mqtt", "mqtts"] = "mqtts" if self.tls else "mqtt"
        address = BrokerAddress(self.host, self.port, scheme, self.user, self.password)
        if address.exposed and not self.insecure:
            hint = "add &insecure=1 in a network you trust, or mqtts:// with ca, cert and key"
            reason = f"{address} is beyond this machine and has no certificates"
            raise StreamOpenError("mqtt", reason, hint)
        try:
            return with_password("mqtt", address, self.password_file)
        except SettingError as error:
            raise StreamOpenError(error.key, error.problem, error.hint) from error

    def certificates(self) -> TlsFiles | None:
        """Return the certificate files, if there are any."""
        return TlsFiles(*self.tls) if self.tls else None

    @property
    def dtype(self) -> str:
        """The type that all features have; float64 where they differ or declare none."""
        known = {field.name: field.dtype for field in self.declared}
        types = {known.get(name, "float64") for name in self.features}
        return types.pop() if len(types) == 1 else "float64"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSpec:
    """A user's own stream, an entry point of the group ``fedagent.streams``.

    Attributes:
        kind: Name of the entry point.
        text: What stands behind the colon; the user's class reads it.
        buffer: Most samples of one take; the newest stay.
    """

    kind: str
    text: str
    buffer: int = 4096


StreamSpec = ReplaySpec | SeriesSpec | CsvSpec | MqttSpec | OwnSpec
