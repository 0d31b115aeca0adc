"""Power returns to 300 agents at once: an edge and its broker are killed and started again.

``python -m bench.storm [mosquitto|embedded ...]``, in a network of its own. The agents are real
cores with real links over TLS, each with its own certificate, hosted in a few processes; no
trainers. Joined is who the edge has greeted since it is back.
"""

import argparse
import asyncio
import functools
import logging
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from fedagent_agent.config import AgentConfig
from fedagent_agent.links import BrokerLinks
from fedagent_agent.store import open_agent
from fedagent_node.address import BrokerAddress
from fedagent_node.network import free_port
from fedagent_node.shell import Shell
from fedagent_node.site.enrolling import renew
from fedagent_testbed.local import LocalField, RoleProcess
from tests.fakes.site import Members

from .rows import Row, Rows, show

AGENTS, HOSTS = 300, 3
DOWN_S = 5.0
SHARE, BAR_S = 0.95, 30.0
PATIENCE_S = 90.0
RECIPE = Path(__file__).parent / "wire.toml"


async def _agent(folder: Path, site: str, address: str) -> None:
    config = AgentConfig(data_dir=str(folder), site=site, stream="digits:rate=1", discovery="off")
    shell = Shell(config, fatal=(), show=lambda _: None)

    async def serve() -> None:
        identity = shell.identify()
        shell.enrol(functools.partial(renew, shell.directory, identity))
        core, store = open_agent(
            config,
            identity.id,
            submit=lambda _: None,
            pending=lambda _: 0,
            identity=identity,
        )
        links = BrokerLinks(shell, core, site)
        shell.drive(core, store, links.route, change=links.change)
        await links.add(BrokerAddress.parse(address))
        await shell.stop.wait()

    await shell.run(serve)


async def _host(folders: list[Path], site: str, address: str) -> None:
    await asyncio.gather(*(_agent(folder, site, address) for folder in folders))


def _until_joined(edge: RoleProcess, wanted: int) -> float:
    """Return the seconds until so many have joined; infinite if they do not."""
    began = time.monotonic()
    while time.monotonic() - began < PATIENCE_S:
        if len({str(one["agent"]) for one in edge.all("agent_joined")}) >= wanted:
            return time.monotonic() - began
        time.sleep(0.05)
    return float("inf")


def measure(broker: str) -> Row:
    """Return how long it takes until 95 in 100 are back."""
    with tempfile.TemporaryDirectory(prefix="fedagent-storm-") as folder:
        home, site = Path(folder), f"storm-{secrets.token_hex(4)}"
        members = Members.of_coordinator(home, "coordinator", site)
        names = [f"agent-{i}" for i in range(AGENTS)]
        members.member("edge-0", "edge")
        for name in names:
            members.member(name, "agent")
        with LocalField(home, site, defaults={"log_level": "error"}) as here:
            here.coordinator(
                RECIPE,
                broker=broker,
                wait_agents=AGENTS + 1,
                secure=True,
                join_port=free_port("127.0.0.1"),
            )
            port = free_port("127.0.0.1")
            config = {"broker": broker, "secure": True, "port": port}
            edge = here.edge("edge-0", **config)
            edge.wait("ready")
            command = [
                sys.executable,
                "-m",
                "bench.storm",
                "--host",
                site,
                f"mqtts://127.0.0.1:{port}",
            ]
            hosts = [
                subprocess.Popen([*command, *(str(home / name) for name in names[k::HOSTS])])
                for k in range(HOSTS)
            ]
            try:
                first = _until_joined(edge, AGENTS)
                time.sleep(DOWN_S)
                edge.kill()
                time.sleep(DOWN_S)
                began = time.monotonic()
                edge = here.edge("edge-0", **config)
                edge.wait("ready")
                ready = time.monotonic() - began
                back = _until_joined(edge, round(SHARE * AGENTS))
                everyone = back + _until_joined(edge, AGENTS)
                family = [
                    psutil.Process(edge.pid),
                    *psutil.Process(edge.pid).children(recursive=True),
                ]
                memory = sum(one.memory_info().rss for one in family) / 1e6
            finally:
                for host in hosts:
                    host.kill()
                for host in hosts:
                    host.wait(20)
    return {
        "bench": "storm",
        "broker": broker,
        "agents": AGENTS,
        "first_join_s": round(first, 1),
        "edge_ready_s": round(ready, 1),
        "joined_95_s": round(back, 1),
        "joined_all_s": round(everyone, 1),
        "edge_and_broker_mb": round(memory, 1),
        "bar_s": BAR_S,
        "met": ready + back <= BAR_S,
    }


def rows(brokers: tuple[str, ...] = ("mosquitto", "embedded")) -> Rows:
    """Return the storm over every kind of broker."""
    return (measure(broker) for broker in brokers)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.storm", description=__doc__)
    parser.add_argument("--host", nargs=2, metavar=("SITE", "ADDRESS"), help="be such a process")
    parser.add_argument("names", nargs="*", help="kinds of brokers, or folders of agents")
    options = parser.parse_args()
    if options.host:
        logging.basicConfig(level=logging.CRITICAL)
        asyncio.run(_host([Path(name) for name in options.names], *options.host))
        return 0
    return not show(rows(tuple(options.names) or ("mosquitto", "embedded")))


if __name__ == "__main__":
    sys.exit(main())
