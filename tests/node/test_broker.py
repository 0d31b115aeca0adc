"""Private brokers: chosen, started, watched, and never left behind."""

import asyncio
import logging
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fedagent_node.broker import process as broker_module
from fedagent_node.broker.process import Broker, BrokerSpec, choose_kind
from fedagent_node.errors import (
    SettingError,
)
from fedagent_node.network import bindable
from tests.fakes.links import broker, eventually, peer

PARENT = """
import asyncio, sys
from pathlib import Path
from fedagent_node.broker.process import Broker, BrokerSpec

async def main():
    broker = Broker(BrokerSpec(kind=sys.argv[1], data_dir=Path(sys.argv[2])))
    address = await broker.start()
    print(address.port, *broker.pids, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_kill_of_the_parent_leaves_no_broker_and_a_free_port(
    kind: str, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, kind, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        port, *pids = map(int, parent.stdout.readline().split())
        assert all(map(alive, pids))
        parent.kill()
    await eventually(lambda: not any(map(alive, pids)))
    assert bindable("127.0.0.1", port)
    async with broker(kind, tmp_path) as again:
        assert again.address.port == port


async def test_a_taken_port_gives_another_which_is_remembered(kind: str, tmp_path: Path) -> None:
    async with broker(kind, tmp_path) as first:
        port = first.address.port
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", port))
        squatter.listen()
        async with broker(kind, tmp_path) as second:
            moved = second.address.port
            assert moved != port
    async with broker(kind, tmp_path) as third:
        assert third.address.port == moved


async def test_private_files_are_private(kind: str, tmp_path: Path) -> None:
    async with broker(kind, tmp_path):
        pass
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_listening_beyond_loopback_needs_certificates_or_courage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SettingError, match="--insecure"):
        Broker(BrokerSpec(data_dir=tmp_path, listen="0.0.0.0"))
    with caplog.at_level(logging.WARNING):
        open_broker = Broker(BrokerSpec(data_dir=tmp_path, listen="0.0.0.0", insecure=True))
    assert "without encryption" in caplog.text
    assert open_broker.address.host == "127.0.0.1"


@pytest.mark.mosquitto
def test_auto_takes_mosquitto_where_it_is_and_else_the_embedded_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert choose_kind("auto") == "mosquitto"
    monkeypatch.setattr(broker_module, "mosquitto_program", lambda: None)
    assert choose_kind("auto") == "embedded"
    with pytest.raises(SettingError, match="install mosquitto"):
        choose_kind("mosquitto")
    with pytest.raises(SettingError):
        choose_kind("rabbit")


async def test_an_embedded_broker_closes_connections_that_say_nothing_sensible(
    tmp_path: Path,
) -> None:
    async with broker("embedded", tmp_path) as b:
        for junk in (b"", b"\x00" * 64, b"\xff" * 64, b"\x10\xff\xff\xff\x7f"):
            reader, writer = await asyncio.open_connection(b.address.host, b.address.port)
            writer.write(junk)
            writer.write_eof()
            with pytest.raises(asyncio.IncompleteReadError):
                await asyncio.wait_for(reader.readexactly(1), 60)
            writer.close()
        async with peer(b.address, "honest"):
            pass
        assert b.counters["restarts"] == 0
