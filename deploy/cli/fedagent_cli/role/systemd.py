"""A role as a systemd service: its unit, made of a template; who may read it; systemctl."""

import os
import pwd
import re
import stat
import subprocess
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from string import Template

from fedagent_cli import places
from fedagent_cli.errors import REFUSED, CliError, UsageError

HOMES = tuple(map(Path, ("/home", "/root", "/run/user")))
"""What ``ProtectHome=yes`` hides."""
ROLES = {
    "agent": {
        "about": "agent: learns on this device's stream",
        "no_restart": "2 11 75",
        "restart": "always",
        "resources": "# Training is nice by itself (--nice): the agent's own answers stay prompt\n"
        "IOSchedulingClass=idle\nMemoryMax=50%\n",
    },
    "edge": {
        "about": "edge aggregator",
        "no_restart": "2 75",
        "restart": "always",
        "resources": "MemoryMax=60%\n",
    },
    "coordinator": {
        "about": "coordinator",
        "no_restart": "2 31 32 34 43 75",
        "restart": "on-failure",
        "resources": "# It ends with 0 after the last round; only failures start it again\n"
        "MemoryMax=60%\n",
    },
}
"""What the units of the roles differ in; numbers are exit codes."""
NETWORK = "Wants=network-online.target\nAfter=network-online.target avahi-daemon.service\n"
SANDBOX = """\
ProtectSystem=strict
ProtectHome=$home
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectHostname=yes
CapabilityBoundingSet=
"""
"""With `NETWORK` and a user, what one user's manager cannot give: namespaces, capabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A role as a service."""

    role: str
    config: Path
    user: str | None = None  # none for one that systemd makes up for it
    mine: bool = False  # of the user's own manager
    program: Sequence[str] = ()  # one file, or an interpreter and its arguments
    reads: Sequence[Path] = ()  # files that the program is made of

    @property
    def name(self) -> str:
        """The unit without its suffix."""
        return f"fedagent-{self.role}"

    @property
    def unit(self) -> Path:
        """The unit's file, the system's or this user's."""
        folder = own_folder() / "systemd/user" if self.mine else Path("/etc/systemd/system")
        return folder / f"{self.name}.service"

    @property
    def systemctl(self) -> list[str]:
        """The beginning of a command to the system's manager, or to this user's."""
        return ["systemctl", "--user"] if self.mine else ["systemctl"]

    def unit_text(self) -> str:
        """Return the unit."""
        user = "DynamicUser=yes" if self.user is None else f"User={_plain(self.user)}"
        owned = f"Environment=FEDAGENT_HOME=%S/{self.name}\nStateDirectory={self.name}\n{user}\n"
        read = (*self.reads, self.config)
        seen = any(path.is_relative_to(home) for path in read for home in HOMES)
        template = (places.bundled("systemd") / "fedagent.service.in").read_text("utf-8")
        return Template(template).substitute(
            ROLES[self.role],
            role=self.role,
            settings=_plain(str(self.config)),
            systemctl=" ".join(self.systemctl),
            network="" if self.mine else NETWORK,
            start=" ".join(map(_word, (*self.program, self.role, "--config", str(self.config)))),
            user="" if self.mine else owned,
            sandbox="" if self.mine else SANDBOX.replace("$home", "read-only" if seen else "yes"),
            target="default.target" if self.mine else "multi-user.target",
        )

    def settings_text(self) -> str:
        """Return the example of its settings."""
        text = (places.bundled("systemd") / f"{self.role}.toml").read_text("utf-8")
        return text.replace("systemctl restart", " ".join([*self.systemctl, "restart"]))

    def unseen(self) -> str:
        """Return what it reads that a user without rights may not read; empty if it may read all.

        Who names a user knows what that one may.
        """
        found = [*self.reads, *([self.config] if self.config.exists() else [])]
        steps = [(path, stat.S_IROTH) for path in found]
        steps += [(folder, stat.S_IXOTH) for path in found for folder in path.absolute().parents]
        steps.sort(key=lambda step: len(step[0].parts))
        return next((str(path) for path, need in steps if not path.stat().st_mode & need), "")


def installed_here(role: str, *, config: Path | None, user: str | None, mine: bool) -> Service:
    """Return the service that runs this very fedagent."""
    if user is not None:
        try:
            pwd.getpwnam(user)
        except KeyError as error:
            hint = f"make it: useradd --system --shell /usr/sbin/nologin {user}"
            raise UsageError(f"--user: there is no user {user!r} on this system", hint) from error
    script = Path(sys.executable).parent / "fedagent"
    program = (str(script),) if script.is_file() else (sys.executable, "-m", "fedagent_cli")
    settings = own_folder() / "fedagent" if mine else Path("/etc/fedagent")
    return Service(
        role=role,
        config=(config or settings / f"{role}.toml").absolute(),
        user=user,
        mine=mine,
        program=program,
        reads=(Path(program[0]), Path(sys.executable).resolve(), Path(__file__).resolve()),
    )


def own_folder() -> Path:
    """Return where this user keeps settings: ``$XDG_CONFIG_HOME``, else ``~/.config``."""
    shared = os.environ.get("XDG_CONFIG_HOME")
    return Path(shared).expanduser() if shared else Path.home() / ".config"


def lingers() -> bool:
    """Return whether this user's services run without anybody logged in."""
    name = pwd.getpwuid(os.geteuid()).pw_name
    return os.geteuid() == 0 or (Path("/var/lib/systemd/linger") / name).exists()


def systemd_runs(*, mine: bool = False) -> bool:
    """Return whether this machine was started by systemd (sd_booted(3)), or this user has one."""
    own = Path(os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.geteuid()}")) / "systemd/private"
    there = own.exists() if mine else Path("/run/systemd/system").is_dir()
    return there and which("systemctl") is not None


def call(commands: Iterable[Sequence[str]]) -> None:
    """Run commands of systemd; the error of one that failed has its last words."""
    for command in commands:
        done = subprocess.run(list(command), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            words = (done.stderr.strip().splitlines() or ["no error message"])[-1]
            raise CliError(
                f"`{' '.join(command)}` failed: {words}",
                "see `journalctl -xe`, then try again",
                exit_code=REFUSED,
            )


def _word(text: str) -> str:
    safe = _plain(text).replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[\w@%+=:,./$-]+", safe):
        return safe
    escaped = safe.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _plain(text: str) -> str:
    """Return text that is no more than a part of its line; `UsageError` if it is."""
    if any(unicodedata.category(one) in ("Cc", "Zl", "Zp") for one in text):
        raise UsageError(f"{text!r} has a control character", "no unit can hold it: rename it")
    return text
