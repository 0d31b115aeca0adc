"""A Flower deployment on loopback: one SuperLink, N SuperNodes, in their own environment.

Runs Flower as its documentation says ("Run Flower with the Deployment Runtime"), with
its defaults: `flower-superlink --insecure`, `flower-supernode --insecure` per node,
`flwr run`. Only three things differ, and none of them costs time: telemetry and the
update check are off, and no dependencies are installed at run time.
"""

import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.peers import process_tree

HOST = "127.0.0.1"
APP = Path(__file__).parent / "flower_app"
REQUIREMENTS = Path(__file__).parent / "flower-requirements.txt"
START_S = 60.0
CONNECTION = "bench"
LOG_TAIL_LINES = 25


class PeerError(Exception):
    """The peer could not be installed, started or brought through its rounds."""


def install(folder: Path) -> str:
    """Make the peer's environment, unless it is there; return the version of Flower.

    Raises:
        PeerError: The environment cannot be made, or Flower cannot be installed.
    """
    python = folder / "bin" / "python"
    wanted = REQUIREMENTS.read_text("utf-8")
    done = folder / "installed.txt"
    try:
        if not done.exists() or done.read_text("utf-8") != wanted:
            _quietly([sys.executable, "-m", "venv", "--clear", str(folder)])
            _quietly([str(python), "-m", "pip", "install", "-q", "-r", str(REQUIREMENTS)])
            done.write_text(wanted, "utf-8")
        show = "import importlib.metadata as m; print(m.version('flwr'))"
        found = subprocess.run(
            [str(python), "-c", show], check=True, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as exc:
        raise PeerError(f"Flower cannot be installed in {folder}: {exc}") from exc
    return found.stdout.strip()


def _quietly(command: list[str]) -> None:
    # Standard output belongs to the figures.
    subprocess.run(command, check=True, stdout=sys.stderr, timeout=900)


@dataclass(slots=True)
class FlowerField:
    """The processes of one deployment, all below this process.

    Attributes:
        env: Folder of the peer's virtual environment.
        work: Empty folder for its home, its logs and the stamps.
    """

    env: Path
    work: Path
    agents: int
    nodes: list[psutil.Popen] = field(default_factory=list)
    server: psutil.Popen | None = None
    _all: list[psutil.Popen] = field(default_factory=list)
    _address: str = ""

    @property
    def stamps(self) -> Path:
        """The file the server app writes a line to after each round."""
        return self.work / "stamps.jsonl"

    def start(self) -> None:
        """Start the SuperLink, wait until it listens, then start every SuperNode.

        Raises:
            PeerError: The SuperLink does not listen in time.
        """
        # All at once, so that no port is handed out twice.
        port, *node_ports = _free_ports(1 + self.agents)
        self._address = f"{HOST}:{port}"
        self.server = self._spawn(
            "superlink",
            "flower-superlink",
            *("--insecure", "--disable-runtime-dependency-installation"),
            *("--host", HOST, "--port", str(port)),
        )
        self._await_port(port)
        self.nodes = [
            self._spawn(
                f"node-{i}",
                "flower-supernode",
                *("--insecure", "--superlink", self._address),
                *("--host", HOST, "--port", str(node_port)),
                *("--node-config", f"partition-id={i} num-partitions={self.agents}"),
            )
            for i, node_port in enumerate(node_ports)
        ]

    def submit(self, settings: dict[str, int]) -> psutil.Popen:
        (self.work / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f'[superlink.{CONNECTION}]\naddress = "{self._address}"\ninsecure = true\n',
            "utf-8",
        )
        values = " ".join(f"{key}={value}" for key, value in settings.items())
        config = f'{values} agents={self.agents} stamps="{self.stamps}"'
        return self._spawn("run", "flwr", "run", str(APP), CONNECTION, "--run-config", config)

    def check(self, run: psutil.Popen) -> None:
        """Raise when a process that must be there is gone, with the end of its log.

        Raises:
            PeerError: Which one ended, and its last lines.
        """
        if run.poll():
            raise PeerError(f"flwr run failed (code {run.poll()}):\n{self.log_tail('run')}")
        named = [("superlink", self.server), *((f"node-{i}", n) for i, n in enumerate(self.nodes))]
        for name, process in named:
            if process is not None and not process_tree.living(process):
                raise PeerError(f"{name} ended:\n{self.log_tail(name)}")

    def stop(self) -> None:
        process_tree.stop_all(self._all)

    def log_tail(self, name: str) -> str:
        path = self.work / f"{name}.log"
        text = path.read_text("utf-8", "replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])

    def _spawn(self, name: str, program: str, *arguments: str) -> psutil.Popen:
        binaries = self.env.absolute() / "bin"
        own = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "FLWR_"))}
        own |= {
            # Flower starts its own programs by name.
            "PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "FLWR_HOME": str(self.work),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "NO_PROXY": HOST,
        }
        command = [str(binaries / program), *arguments]
        process = process_tree.spawn(command, log=self.work / f"{name}.log", env=own)
        self._all.append(process)
        return process

    def _await_port(self, port: int) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex((HOST, port)) == 0:
                    return
            time.sleep(0.05)
        raise PeerError(
            f"the SuperLink is not up in {START_S:.0f} s:\n{self.log_tail('superlink')}"
        )


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind((HOST, 0))
        return [int(sock.getsockname()[1]) for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()
