"""Show a run as a device in Home Assistant, by MQTT discovery on Home Assistant's own broker.

fedagent status --watch --json | python home_assistant.py mqtt://USER@HOST [PASSWORD_FILE]
"""

import json
import sys
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

SENSORS = {
    "round": {"name": "Round", "icon": "mdi:counter"},
    "quality": {
        "name": "Model",
        "icon": "mdi:chart-line",
        "suggested_display_precision": 3,
    },
    "in_time": {"name": "Updates in time", "icon": "mdi:devices"},
    "budget": {"name": "Budget left", "icon": "mdi:cash", "unit_of_measurement": "credits"},
    "alarms": {"name": "Alarms", "icon": "mdi:alert-outline"},
}


def description(topic: str) -> dict[str, object]:
    """Return the discovery payload: one message for all sensors of the device."""
    return {
        "device": {"identifiers": [topic], "name": "fedagent", "manufacturer": "fedagent"},
        "origin": {"name": "fedagent"},
        "state_topic": f"{topic}/state",
        "availability_topic": f"{topic}/available",
        "components": {
            key: {
                "platform": "sensor",
                "unique_id": f"{topic}-{key}",
                "state_class": "measurement",
                "value_template": f"{{{{ value_json.{key} }}}}",
                **sensor,
            }
            for key, sensor in SENSORS.items()
        },
    }


class State:
    """The sensors' values, from the events of a run; None is shown as unknown."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = dict.fromkeys(SENSORS)
        self._measure = ""
        self._alarms: set[tuple[str, str]] = set()

    def note(self, event: dict[str, Any]) -> None:
        """Take in one line of ``fedagent status --watch --json``."""
        values = self.values
        match event["event"]:
            case "run":
                self._measure = event["primary_metric"]
                values["round"] = event["rounds_done"]
                values["quality"] = event["metrics"].get(self._measure)
                if event["budget_total_micro"] is not None:
                    values["budget"] = (event["budget_total_micro"] - event["spent_micro"]) / 1e6
            case "round":
                values["round"], values["in_time"] = event["round"], event["in_time"]
                values["quality"] = event["metrics"].get(self._measure, values["quality"])
                if values["budget"] is not None:
                    values["budget"] -= (event["paid_micro"] + event["rent_micro"]) / 1e6
            case "alarm":
                self._alarms.add((event["kind"], event["subject"]))
            case "alarm_over":
                self._alarms.discard((event["kind"], event["subject"]))
        values["alarms"] = len(self._alarms)


def show(lines: IO[str], address: str, password: str | None, topic: str) -> None:
    """Show the run until its lines end, and take the device back then."""
    place, state = urlsplit(address), State()
    client = Client(CallbackAPIVersion.VERSION2, client_id=topic)
    if place.username:
        client.username_pw_set(unquote(place.username), password)
    if place.scheme == "mqtts":
        client.tls_set()
    available, found_at = f"{topic}/available", f"homeassistant/device/{topic}/config"
    client.will_set(available, "offline", retain=True)

    def greet(*_: object) -> None:
        client.publish(found_at, json.dumps(description(topic)), retain=True)
        client.publish(available, "online", retain=True)

    client.on_connect = greet
    client.connect(place.hostname or "", place.port or (8883 if place.scheme == "mqtts" else 1883))
    client.loop_start()
    for line in lines:
        state.note(json.loads(line))
        client.publish(f"{topic}/state", json.dumps(state.values), qos=1, retain=True)
    for retained in (found_at, available, f"{topic}/state"):
        client.publish(retained, "", qos=1, retain=True).wait_for_publish(5)
    client.disconnect()
    client.loop_stop()


if __name__ == "__main__":
    secret = Path(sys.argv[2]).read_text("utf-8-sig").strip() if len(sys.argv) > 2 else None
    show(sys.stdin, sys.argv[1], secret, "fedagent")
