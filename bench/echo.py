"""The floor of any system over MQTT: a bare echo with nothing but paho and a broker.

The server publishes a payload to each of N clients (processes), each publishes it back,
and a round ends when all are back. No credit, no digest, no disk, one message whatever
its size. Prints one JSON object per case, with the median over the rounds.

    python -m bench.echo                             # every case of the table
    python -m bench.echo --size 22KB --clients 4
"""

import argparse
import asyncio
import multiprocessing
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from fedagent_node.address import BrokerAddress
from fedagent_node.broker.process import Broker, BrokerSpec

from .rows import show

PAYLOAD_BYTES = {"22KB": 22_000, "2.34MB": 2_340_000, "25MB": 25_000_000}
ROUNDS = {"22KB": 200, "2.34MB": 30, "25MB": 6}
WARM = {"22KB": 20, "2.34MB": 3, "25MB": 1}
CLIENTS = {"22KB": (10, 4), "2.34MB": (10,), "25MB": (10,)}
# Our brokers limit packets to what our chunks need; here one packet is a model.
MAX_PACKET_BYTES = 64 << 20
QOS = 1
READY_S = 30.0
RUN_S = 240.0
STOP_S = 5.0


class EchoError(Exception):
    """The echo did not get through its rounds."""


def _client(name: str) -> paho.Client:
    """Return a paho client that sends without Nagle's delay."""

    def no_delay(client: paho.Client, userdata: object, sock: "paho.SocketLike") -> None:
        del client, userdata
        assert isinstance(sock, socket.socket)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name)
    client.on_socket_open = no_delay
    return client


def _echo_client(number: int, port: int) -> None:
    """Send back whatever comes, until the broker is gone."""
    client = _client(f"echo-{number}")

    def back(client: paho.Client, userdata: object, message: paho.MQTTMessage) -> None:
        del userdata
        client.publish(f"echo/up/{number}", message.payload, QOS)

    def ready(client: paho.Client, userdata: object, *rest: object) -> None:
        del userdata, rest
        client.publish(f"echo/up/{number}", b"", QOS)

    client.on_message = back
    client.on_subscribe = ready
    client.connect("127.0.0.1", port)
    client.subscribe(f"echo/down/{number}", QOS)
    # One pass after another and not loop_forever: that one would reconnect for ever.
    while client.loop(1.0) == paho.MQTT_ERR_SUCCESS:
        pass


class EchoServer:
    """Sends the payload to all, waits for all, again; everything in the network thread."""

    def __init__(self, clients: int, payload: bytes, rounds: int) -> None:
        self.seconds: list[float] = []
        self.ready = threading.Event()
        self.done = threading.Event()
        self.lost = ""
        self._clients = clients
        self._payload = payload
        self._rounds = rounds
        self._waiting = set(range(clients))
        self._began = 0.0
        self.mqtt = _client("echo-server")
        self.mqtt.max_inflight_messages_set(4 * clients)
        self.mqtt.on_message = self._on_message
        self.mqtt.on_disconnect = self._on_disconnect

    def connect(self, port: int) -> None:
        """Connect, start the network thread and wait until the subscription stands.

        Raises:
            EchoError: The broker does not acknowledge it in time.
        """
        subscribed = threading.Event()
        self.mqtt.on_subscribe = lambda *_: subscribed.set()
        self.mqtt.connect("127.0.0.1", port)
        self.mqtt.subscribe("echo/up/+", QOS)
        self.mqtt.loop_start()
        if not subscribed.wait(READY_S):
            raise EchoError(f"the broker is silent for {READY_S:.0f} s")

    def begin(self) -> None:
        self._waiting = set(range(self._clients))
        self._began = time.perf_counter()
        for number in range(self._clients):
            self.mqtt.publish(f"echo/down/{number}", self._payload, QOS)

    def _on_disconnect(
        self, client: paho.Client, userdata: object, flags: object, reason: object, *rest: object
    ) -> None:
        del client, userdata, flags, rest
        if not self.done.is_set():
            self.lost = f"disconnected in round {len(self.seconds) + 1}: {reason}"
            self.done.set()

    def _on_message(self, client: paho.Client, userdata: object, message: paho.MQTTMessage) -> None:
        del client, userdata
        if len(message.payload) != (len(self._payload) if self.ready.is_set() else 0):
            return
        self._waiting.discard(int(message.topic.rpartition("/")[2]))
        if self._waiting:
            return
        if not self.ready.is_set():
            self.ready.set()
            return
        self.seconds.append(time.perf_counter() - self._began)
        if len(self.seconds) < self._rounds:
            self.begin()
        else:
            self.done.set()


def _rounds(size: str, clients: int, address: BrokerAddress) -> list[float]:
    """Run the server here and the clients as processes; return the warm rounds' seconds.

    Raises:
        EchoError: The clients do not connect, or the rounds do not end, in time.
    """
    server = EchoServer(clients, os.urandom(PAYLOAD_BYTES[size]), WARM[size] + ROUNDS[size])
    server.connect(address.port)
    spawn = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = [
        spawn.Process(target=_echo_client, args=(n, address.port), daemon=True)
        for n in range(clients)
    ]
    try:
        for process in processes:
            process.start()
        if not server.ready.wait(READY_S):
            raise EchoError(f"the clients are not connected after {READY_S:.0f} s")
        server.begin()
        if not server.done.wait(RUN_S):
            raise EchoError(f"{len(server.seconds)} rounds in {RUN_S:.0f} s")
        if server.lost:
            raise EchoError(server.lost)
    finally:
        server.mqtt.disconnect()
        server.mqtt.loop_stop()
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(STOP_S)
    return server.seconds[WARM[size] :]


@asynccontextmanager
async def _mosquitto() -> AsyncIterator[BrokerAddress]:
    """Run a private mosquitto, configured as the roles configure it."""
    with tempfile.TemporaryDirectory(prefix="fedagent-echo-") as folder:
        spec = BrokerSpec(
            data_dir=Path(folder), kind="mosquitto", max_packet_bytes=MAX_PACKET_BYTES
        )
        broker = Broker(spec)
        try:
            yield await broker.start()
        finally:
            await broker.stop()


async def measure(size: str, clients: int) -> dict[str, object]:
    """Run one case on a private broker and return its figures.

    Raises:
        EchoError: The clients do not connect, or the rounds do not end.
    """
    async with _mosquitto() as address:
        seconds = await asyncio.to_thread(_rounds, size, clients, address)
    return {
        "bench": "echo",
        "size": size,
        "clients": clients,
        "broker": "mosquitto",
        "rounds": len(seconds),
        "seconds_per_round": round(statistics.median(seconds), 5),
        "min": round(min(seconds), 5),
        "max": round(max(seconds), 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=list(PAYLOAD_BYTES))
    parser.add_argument("--clients", type=int)
    chosen = parser.parse_args()
    for size in [chosen.size] if chosen.size else PAYLOAD_BYTES:
        for clients in [chosen.clients] if chosen.clients else CLIENTS[size]:
            show([asyncio.run(measure(size, clients))])


if __name__ == "__main__":
    main()
