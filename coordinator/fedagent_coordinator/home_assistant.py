"""The run as a device in Home Assistant: MQTT discovery on the broker that Home Assistant uses.

One message is retained there, the description of the device. It is taken back at a clean stop, and
by the next start without the option where there was none; a file keeps at which broker.
"""

import asyncio
import logging
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import msgspec
from msgspec import Struct

from fedagent_coordinator.books.models import recipe_in
from fedagent_coordinator.books.reader import open_reader
from fedagent_coordinator.picture.alarms import alarms
from fedagent_coordinator.picture.status_files import read_devices, read_run_status
from fedagent_node.address import BrokerAddress, TlsFiles
from fedagent_node.data_dir import write_private
from fedagent_node.effects import Emit
from fedagent_node.link import Link
from fedagent_protocol import VERSION
from fedagent_task.measures import measures_of

from .errors import CoordinatorError

LEFT_FILE = "home-assistant"
"""Of the data directory: the broker at which a description is retained, without its password."""
PREFIX = "homeassistant/device"
EVERY_S = 60.0
LEAST_S = 5.0
"""Between two states, however fast rounds are."""
EXPIRES_S = 3 * EVERY_S
"""After so long without a state its figures are shown as unavailable: it was killed."""
TAKE_BACK_S = 10.0
ROUNDS = 50
"""In which the newest figure of the model is looked for."""
_NEWS = frozenset({"round", "model", "edge_joined", "edge_lost", "end"})
_log = logging.getLogger(__name__)


class State(Struct, frozen=True):
    """What Home Assistant is told; None is shown as unknown. No names, no reasons in words."""

    round: int
    quality: float | None
    measure: str
    budget: float | None
    agents: int
    alarms: int


def topic_of(ident: str, kind: str) -> str:
    """Return the topic of a coordinator's ``config`` or ``state``."""
    return f"{PREFIX}/fedagent-{ident}/{kind}"


def description(ident: str, site: str) -> dict[str, object]:
    """Return the discovery payload of the device: one message for all its entities."""

    def sensor(key: str, name: str, icon: str, **more: object) -> dict[str, object]:
        return {
            "platform": "sensor",
            "unique_id": f"fedagent-{ident}-{key}",
            "name": name,
            "icon": f"mdi:{icon}",
            "state_class": "measurement",
            "value_template": f"{{{{ value_json.{key} }}}}",
            "expire_after": round(EXPIRES_S),
            **more,
        }

    attributes = {
        "json_attributes_topic": topic_of(ident, "state"),
        "json_attributes_template": "{{ {'measure': value_json.measure} | tojson }}",
        "suggested_display_precision": 3,
    }
    return {
        "device": {
            "identifiers": [f"fedagent-{ident}"],
            "name": f"fedagent {site}",
            "manufacturer": "fedagent",
            "model": "coordinator",
            "sw_version": VERSION,
        },
        "origin": {"name": "fedagent", "sw_version": VERSION},
        "state_topic": topic_of(ident, "state"),
        "qos": 1,
        "components": {
            "round": sensor("round", "Round", "counter"),
            "quality": sensor("quality", "Model", "chart-line", **attributes),
            "budget": sensor("budget", "Budget left", "cash", unit_of_measurement="credits"),
            "agents": sensor("agents", "Devices here", "devices"),
            "alarms": sensor("alarms", "Alarms", "alert-outline"),
        },
    }


def seen(folder: Path, now: float) -> State:
    """Return the state of the newest run in a data directory; `now` is the wall clock.

    Raises:
        CoordinatorError, sqlite3.Error: It cannot be read.
    """
    with open_reader(folder) as read:
        run = read.run()
        status = read_run_status(folder)
        rows = read.rounds(run.run_id, last=ROUNDS)
        measure = next(iter(measures_of(recipe_in(run.recipe))), None)
        values = [measure.of(row.metrics) for row in rows] if measure is not None else []
        known = read_devices(folder)
        here = known.devices.values() if known is not None else ()
        return State(
            round=read.last_round(run.run_id),
            quality=next((one for one in reversed(values) if one is not None), None),
            measure=measure.key if measure is not None else "",
            budget=None
            if run.unlimited
            else read.balance(run.run_id, voided=False).free_micro / 1e6,
            agents=sum(bool(one.edges) for one in here),
            alarms=len(alarms(read, status, now)),
        )


class HomeAssistant:
    """One coordinator's device at the broker of Home Assistant; its messages are not signed."""

    def __init__(
        self,
        folder: Path,
        ident: str,
        site: str,
        address: BrokerAddress,
        *,
        tls: TlsFiles | None,
        insecure: bool,
    ) -> None:
        self._folder, self._id, self._site = folder, ident, site
        self._news = asyncio.Event()
        self._showing = False
        self._link = Link(
            address,
            client_id=f"home-{ident}",
            on_arrivals=lambda _: None,
            on_state=self._changed,
            tls=tls,
            insecure=insecure,
        )

    async def show(self) -> None:
        """Show the run from now on, until cancelled."""
        self._showing = True
        write_private(self._folder / LEFT_FILE, place_of(self._link.address).encode())
        await self._link.start()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await self._news.wait()
            self._news.clear()
            if self._link.connected:
                await self._tell()
            await asyncio.sleep(LEAST_S)

    async def _tell(self) -> None:
        try:
            state = await asyncio.to_thread(seen, self._folder, time.time())
        except (CoordinatorError, sqlite3.Error) as error:
            _log.warning("Home Assistant does not get the state of the run: %s", error)
            return
        self._link.publish(topic_of(self._id, "state"), msgspec.json.encode(state))

    def _changed(self, up: bool) -> None:
        self._news.set()
        if up and self._showing:
            config = msgspec.json.encode(description(self._id, self._site))
            self._link.publish(topic_of(self._id, "config"), config, retain=True)

    def note(self, event: Emit) -> None:
        """Take in an event of the coordinator: there may be something new to tell."""
        if event.name in _NEWS:
            self._news.set()

    async def close(self) -> None:
        """Take the device back, and leave; without the broker it stays for the next start."""
        taken = self._link.connected and self._link.publish(
            topic_of(self._id, "config"), b"", retain=True
        )
        if await self._link.stop() and taken:
            (self._folder / LEFT_FILE).unlink(missing_ok=True)

    async def take_back(self) -> None:
        """Take back what a process that was killed has left at a broker, where it is reached."""
        await self._link.start()
        try:
            async with asyncio.timeout(TAKE_BACK_S):
                await self._news.wait()
        except TimeoutError:
            pass  # said below
        finally:
            await self.close()
        if (self._folder / LEFT_FILE).exists():
            _log.warning(
                "Home Assistant still shows this coordinator: its broker %s cannot be reached; "
                "start again, or delete the retained message of %s there",
                self._link.address,
                topic_of(self._id, "config"),
            )


def place_of(address: BrokerAddress) -> str:
    """Return an address as a setting has it, without the password."""
    user = f"{quote(address.user, safe='')}@" if address.user else ""
    return f"{address.scheme}://{user}{str(address).removeprefix('mqtts://')}"


def left_at(folder: Path) -> str:
    """Return the address of the broker that retains a description; empty for none."""
    try:
        return (folder / LEFT_FILE).read_text("utf-8")
    except FileNotFoundError:
        return ""
