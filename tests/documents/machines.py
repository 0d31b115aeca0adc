"""Machines to type on: network namespaces with a LAN between them, and terminals in each.

A namespace lives as long as the process that holds it, which ends with this one. Root needs
nothing else; others get a user namespace, where the kernel allows that.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Literal

import psutil

PATIENCE_S = 150.0
INSTALL_S = 420.0
BROKER_PORT = 1883


class Space:
    """One network namespace, held by a process that ends with this one."""

    def __init__(self, inside: "Space | None" = None) -> None:
        self._user = os.geteuid() != 0
        command = ["unshare", "--net", "sh", "-c", "echo up; exec cat >/dev/null"]
        if inside is not None:
            command = [*inside.enter, *command]
        elif self._user:
            command[1:1] = ["--user", "--map-root-user"]
        self._holder = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "up\n":
            assert self._holder.stderr is not None
            raise OSError(self._holder.stderr.read().strip())

    @property
    def pid(self) -> int:
        return self._holder.pid

    @property
    def enter(self) -> list[str]:
        """The beginning of a command that runs inside."""
        user = ["--user", "--preserve-credentials"] if self._user else []
        return ["nsenter", "--target", str(self.pid), *user, "--net", "--"]

    def ip(self, *arguments: str) -> None:
        subprocess.run([*self.enter, "ip", *arguments], check=True, capture_output=True)

    def sets(self, switch: str) -> None:
        """Turn on one of the kernel's switches for IPv4."""
        write = f"echo 1 > /proc/sys/net/ipv4/{switch}"
        subprocess.run([*self.enter, "sh", "-c", write], check=True, capture_output=True)

    def close(self) -> None:
        for pipe in (self._holder.stdin, self._holder.stdout, self._holder.stderr):
            if pipe is not None:
                pipe.close()
        self._holder.wait(10)


class Terminal:
    """One terminal in which something was typed; what it shows goes to a file."""

    def __init__(
        self, typed: str, command: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: Path
    ) -> None:
        self.typed = typed
        self._log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=cwd,
                env=env,
            )

    @property
    def shown(self) -> str:
        """What the terminal shows."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def command(self) -> list[str]:
        """What the line has become."""
        return psutil.Process(self._process.pid).cmdline()

    def until(self, pattern: str) -> re.Match[str]:
        """Wait until something is shown."""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            ended = self._process.poll()
            found = re.search(pattern, self.shown)
            if found is not None:
                return found
            if ended is not None or time.monotonic() > give_up:
                what = "goes on" if ended is None else f"ended with {ended}"
                raise AssertionError(f"no {pattern} from `{self.typed}`: it {what}\n{self.shown}")
            time.sleep(0.05)

    def until_round(self, number: int = 1) -> None:
        """Wait until a coordinator has settled a round, this one or one soon after it."""
        self.until(rf"\bround ({'|'.join(map(str, range(number, number + 9)))}): ")

    def ctrl_c(self) -> None:
        """Press Ctrl-C."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)

    def ended(self, patience_s: float = PATIENCE_S) -> int:
        """Return the exit code, once it has ended."""
        return self._process.wait(patience_s)

    def kill(self) -> None:
        """End it, whatever it is doing."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)


class Machine:
    """One computer with a LAN card: a home, a folder to type in, what is on its PATH."""

    def __init__(
        self, space: Space | None, folder: Path, cable: tuple[Space, str] | None = None
    ) -> None:
        self._address = folder.name
        self._space, self._cable = space, cable
        self._enter = space.enter if space is not None else []
        self._folder = folder
        self.home = self.cwd = folder / "home"
        self.home.mkdir(parents=True)
        self.path = [Path(sys.executable).parent]
        self.terminals: list[Terminal] = []

    def opens(self, line: str) -> Terminal:
        """Type a line into a terminal of its own, in which it stays."""
        return self._starts(line, ["bash", "-c", line])

    def types(self, *lines: str) -> str:
        """Type lines into one terminal, one after the other; return what they show."""
        terminal = self.opens("\n".join(["set -e", *lines]))
        code = terminal.ended()
        assert code == 0, f"`{terminal.typed}` ended with {code}:\n{terminal.shown}"
        return terminal.shown

    def has_broker(self, listen: str) -> None:
        """Have a broker for everybody on port 1883, as a system's own."""
        self.runs("a broker", BROKER, listen).until("broker up")

    def runs(self, what: str, program: str, *arguments: str) -> Terminal:
        """Run a program that no document knows."""
        return self._starts(what, [sys.executable, "-c", program, *arguments])

    def link(self, state: Literal["up", "down"]) -> None:
        """Pull the cable, or plug it in again: without it the card has no address."""
        assert self._space is not None
        verb = "add" if state == "up" else "del"
        self._space.ip("addr", verb, f"{self._address}/24", "dev", "e0")

    def carries(self, rate: str) -> None:
        """Let its cable carry so much each way, as `tc` writes it."""
        assert self._space is not None
        assert self._cable is not None
        for space, port in ((self._space, "e0"), self._cable):
            limit = f"tc qdisc add dev {port} root tbf rate {rate} burst 32kb latency 400ms"
            subprocess.run([*space.enter, *limit.split()], check=True)

    @property
    def received(self) -> int:
        """Bytes that came over its cable, with their headers."""
        show = [*self._enter, "ip", "-s", "-j", "link", "show", "e0"]
        (card,) = json.loads(subprocess.run(show, check=True, capture_output=True).stdout)
        return int(card["stats64"]["rx"]["bytes"])

    def ends(self) -> None:
        """Press Ctrl-C in every terminal, the newest first; each ends in good order."""
        for terminal in reversed(self.terminals):
            terminal.ctrl_c()
        for terminal in self.terminals:
            code = terminal.ended()
            assert code == 0, f"`{terminal.typed}` ended with {code}:\n{terminal.shown}"

    def _starts(self, typed: str, command: Sequence[str]) -> Terminal:
        terminal = Terminal(
            typed,
            [*self._enter, *command],
            cwd=self.cwd,
            env=environment(self.home, self.path),
            log=self._folder / f"terminal-{len(self.terminals)}.log",
        )
        self.terminals.append(terminal)
        return terminal


BROKER = """
import asyncio, signal, sys
from pathlib import Path
from fedagent_node.broker.process import Broker, BrokerSpec
async def main():
    spec = BrokerSpec(data_dir=Path("broker"), listen=sys.argv[1], port=1883, insecure=True)
    broker, over = Broker(spec), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, over.set)
    await broker.start()
    print("broker up", flush=True)
    await over.wait()
    await broker.stop()
asyncio.run(main())
"""


@contextmanager
def lan(folder: Path, *addresses: str, routed: bool = False) -> Iterator[list[Machine]]:
    """Build machines with these addresses on one switch; end all that runs on them.

    With `routed` a router is in the place of the switch, which passes no multicast on.
    """
    with ExitStack() as stack:
        switch = _space(stack)
        switch.ip("link", "add", "br0", "type", "bridge")
        switch.ip("link", "set", "br0", "up")
        machines = []
        for number, address in enumerate(addresses):
            space = _space(stack, switch)
            port = f"port{number}"
            peer = ("peer", "e0", "netns", str(space.pid))
            switch.ip("link", "add", port, "type", "veth", *peer)
            switch.ip("link", "set", port, "up")
            space.ip("link", "set", "lo", "up")
            space.ip("addr", "add", f"{address}/{32 if routed else 24}", "dev", "e0")
            space.ip("link", "set", "e0", "up")
            if routed:
                space.ip("route", "add", "default", "dev", "e0")
                switch.ip("addr", "add", "192.168.1.1/32", "dev", port)
                switch.ip("route", "add", f"{address}/32", "dev", port)
                switch.sets("ip_forward")
                switch.sets(f"conf/{port}/proxy_arp")
            else:
                switch.ip("link", "set", port, "master", "br0")
            machines.append(Machine(space, folder / address, (switch, port)))
        stack.callback(_kill_all, machines)
        yield machines


def _space(stack: ExitStack, inside: Space | None = None) -> Space:
    space = Space(inside)
    stack.callback(space.close)
    return space


def _kill_all(machines: list[Machine]) -> None:
    for machine in machines:
        for terminal in machine.terminals:
            terminal.kill()


@cache
def why_not() -> str:
    """Return why no machines can be made here; empty if they can."""
    missing = [name for name in ("ip", "unshare", "nsenter", "bash") if not shutil.which(name)]
    if missing:
        return f"needs {', '.join(missing)}"
    try:
        with ExitStack() as stack:
            switch = _space(stack)
            switch.ip("link", "add", "br0", "type", "bridge")
    except (OSError, subprocess.CalledProcessError) as error:
        return f"needs root, or user namespaces: {error}"
    return ""


def environment(home: Path, path: Sequence[Path]) -> dict[str, str]:
    """Return a newcomer's environment: a home, a PATH, and nothing of the tests' own."""
    foreign = ("FEDAGENT_", "PYTHON", "VIRTUAL_ENV", "XDG_", "PYTEST_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    own = str(Path(sys.executable).parent)
    system = [p for p in kept.get("PATH", os.defpath).split(os.pathsep) if p != own]
    # No compiler is left behind by a coordinator that ends at once: see tests/conftest.py.
    kept["FEDAGENT_WARM"] = os.environ.get("FEDAGENT_WARM", "off")
    # pip's own: which index, and what is downloaded already.
    for variable, folder in (("XDG_CONFIG_HOME", ".config"), ("XDG_CACHE_HOME", ".cache")):
        kept[variable] = os.environ.get(variable, str(Path.home() / folder))
    return kept | {"HOME": str(home), "PATH": os.pathsep.join([*map(str, path), *system])}
