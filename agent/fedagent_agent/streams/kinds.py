"""The kinds of streams by name: ours, and those of other packages."""

from fedagent_protocol.registry import Registry

from .spec import StreamSpec

registry: Registry[StreamSpec] = Registry(
    kind="stream",
    package=__package__,
    builtin={
        "digits": "replay:Digits",
        "replay": "replay:Replay",
        "series": "series:Series",
        "csv": "csv_tail:Csv",
        "mqtt": "mqtt_topic:Mqtt",
        "mqtts": "mqtt_topic:Mqtt",
    },
    group="fedagent.streams",
)
