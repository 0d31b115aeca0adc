"""Make the stream that a spec describes."""

import secrets
from collections.abc import Sequence

from .base import Stream
from .csv_tail import CsvStream
from .kinds import CsvSpec, MqttSpec, OwnSpec, ReplaySpec, SeriesSpec, StreamSpec
from .own import OwnStream
from .replay import ReplayStream
from .series import SeriesStream


def create(spec: StreamSpec, *, seed: int, offset: int = 0, labels: Sequence[str] = ()) -> Stream:
    """Return a stream, not yet open.

    Args:
        spec: What it reads; see `spec.parse_stream`.
        seed: Of a replay's order and arrivals.
        offset: Where to go on, as the stream said before.
        labels: Names of the classes, for streams that carry names.
    """
    match spec:
        case ReplaySpec():
            return ReplayStream(spec, seed=seed, offset=offset)
        case SeriesSpec():
            return SeriesStream(spec, offset=offset)
        case CsvSpec():
            return CsvStream(spec, labels=labels, offset=offset)
        case OwnSpec():
            return OwnStream(spec, seed=seed, offset=offset)
        case MqttSpec():
            # Imported here: paho is only for devices with such a sensor.
            from .mqtt_topic import MqttStream  # noqa: PLC0415

            client_id = f"fedagent-stream-{secrets.token_hex(6)}"
            return MqttStream(spec, client_id=client_id, labels=labels)
