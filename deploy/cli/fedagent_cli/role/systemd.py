"""A role as a systemd service: its unit, made of a template; files, rights, systemctl."""

import os
import pwd
import re
import stat
import subprocess
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from shlex import quote
from shutil import which
from string import Template

from fedagent_cli import places
from fedagent_cli.errors import ServiceError, UsageError

UNITS = Path("/etc/systemd/system")
SETTINGS = Path("/etc/fedagent")
HOMES = tuple(map(PurePosixPath, ("/home", "/root", "/run/user")))
"""What ``ProtectHome=yes`` hides."""
TEMPORARY = tuple(map(PurePosixPath, ("/tmp", "/var/tmp")))  # noqa: S108 - nothing is put there
"""What ``PrivateTmp=yes`` hides; no unit with ``DynamicUser=yes`` can do without it."""
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
    """A role as a service.

    Attributes:
        files: Files of root that it reads, by the name of their option: ``tls-ca`` and so on.
    """

    role: str
    program: Sequence[str]  # one file, or an interpreter and its arguments
    reads: Sequence[Path]  # files that the program is made of
    config: Path
    user: str | None = None  # none for one that systemd makes up for it
    data_dir: Path | None = None  # instead of the one below ``/var/lib``; needs a user
    files: Mapping[str, Path] = field(default_factory=dict)
    mine: bool = False  # of the user's own manager

    @property
    def name(self) -> str:
        """The unit without its suffix."""
        return f"fedagent-{self.role}"

    @property
    def in_a_home(self) -> bool:
        """Whether anything that it reads lies where ``ProtectHome=yes`` hides it."""
        return any(path.is_relative_to(home) for path in self._places for home in HOMES)

    @property
    def in_tmp(self) -> Path | None:
        """The first place of it that lies where ``PrivateTmp=yes`` hides it."""
        found = (one for one in self._places if any(map(one.is_relative_to, TEMPORARY)))
        return None if self.mine else next(found, None)

    @property
    def _places(self) -> list[Path]:
        """What it reads."""
        more = [self.data_dir] if self.data_dir is not None else []
        return [*self.reads, self.config, *more]


def unit_text(service: Service) -> str:
    """Return the unit of a service."""
    name, mine = service.name, service.mine
    user = "DynamicUser=yes" if service.user is None else f"User={_plain(service.user)}"
    owned = f"Environment=FEDAGENT_HOME=%S/{name}\nStateDirectory={name}\n{user}\n"
    home = "read-only" if service.in_a_home else "yes"
    files = [f"LoadCredential={name}:{_plain(str(path))}" for name, path in service.files.items()]
    files += [f"ReadWritePaths={_word(str(service.data_dir))}"] if service.data_dir else []
    template = (places.bundled("systemd") / "fedagent.service.in").read_text("utf-8")
    return Template(template).substitute(
        ROLES[service.role],
        role=service.role,
        settings=_plain(str(service.config)),
        systemctl=" ".join(systemctl(mine=mine)),
        network="" if mine else NETWORK,
        start=_start(service),
        user="" if mine else owned,
        files="".join(f"{line}\n" for line in files),
        sandbox="" if mine else Template(SANDBOX).substitute(home=home),
        target="default.target" if mine else "multi-user.target",
    )


def _start(service: Service) -> str:
    words = [*service.program, service.role, "--config", str(service.config)]
    if service.data_dir is not None:
        words += ["--data-dir", str(service.data_dir)]
    line = " ".join(map(_word, words))
    return line + "".join(f" --{name} ${{CREDENTIALS_DIRECTORY}}/{name}" for name in service.files)


def _word(text: str) -> str:
    """Return a word as systemd reads it."""
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


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file of a service; what is not ours is written only where there is none."""

    path: Path
    text: str
    ours: bool

    def state(self, root: Path) -> str:
        """Return what would become of it: new, changed, same or kept."""
        path = below(root, self.path)
        if not path.exists():
            return "new"
        if path.read_text("utf-8") == self.text:
            return "same"
        return "changed" if self.ours else "kept"

    def write(self, root: Path) -> None:
        """Write it, if there is need."""
        if self.state(root) in ("new", "changed"):
            path = below(root, self.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.text, "utf-8")
            path.chmod(0o644)


def own_folder() -> Path:
    """Return where this user keeps settings: ``$XDG_CONFIG_HOME``, else ``~/.config``."""
    shared = os.environ.get("XDG_CONFIG_HOME")
    return Path(shared).expanduser() if shared else Path.home() / ".config"


def units(*, mine: bool) -> Path:
    """Return the folder of units, the system's or this user's."""
    return own_folder() / "systemd/user" if mine else UNITS


def settings(role: str, *, mine: bool) -> Path:
    """Return a role's settings' file, the system's or this user's."""
    return (own_folder() / "fedagent" if mine else SETTINGS) / f"{role}.toml"


def lingers() -> bool:
    """Return whether this user's services run without anybody logged in."""
    name = pwd.getpwuid(os.geteuid()).pw_name
    return os.geteuid() == 0 or (Path("/var/lib/systemd/linger") / name).exists()


def below(root: Path, path: Path) -> Path:
    """Return an absolute path as a path below another root."""
    return root / path.relative_to("/")


def program() -> tuple[str, ...]:
    """Return what runs this very fedagent."""
    script = Path(sys.executable).parent / "fedagent"
    return (str(script),) if script.is_file() else (sys.executable, "-m", "fedagent_cli")


def own_files() -> tuple[Path, ...]:
    """Return files that this fedagent is made of, one of each place that it lies in."""
    return Path(program()[0]), Path(sys.executable).resolve(), Path(__file__).resolve()


def make_data_dir(service: Service) -> None:
    """Make the data directory that was named, for the user that was named.

    One that is there is never given away: it may be anybody's, or a link to anywhere.
    """
    path = service.data_dir
    if path is None or service.user is None:
        return
    known = pwd.getpwnam(service.user)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
    except FileExistsError as error:
        if not path.is_dir() or path.stat().st_uid != known.pw_uid:
            problem = (
                f"--data-dir: {error.filename} is there, and is no folder of user {service.user}"
            )
            hint = (
                f"name a new one, or if it is meant: sudo chown {service.user}: {quote(str(path))}"
            )
            raise UsageError(problem, hint) from error
        return
    except OSError as error:
        problem = f"--data-dir: {path} cannot be made: {error.strerror}"
        raise UsageError(problem, "name a new one in a folder that is there") from error
    os.chown(path, known.pw_uid, known.pw_gid, follow_symlinks=False)


def files_of(service: Service) -> list[Wanted]:
    """Return the files that make the service."""
    example = (places.bundled("systemd") / f"{service.role}.toml").read_text("utf-8")
    path = units(mine=service.mine) / f"{service.name}.service"
    unit = Wanted(path, unit_text(service), ours=True)
    if service.mine:
        example = example.replace(f"restart {service.name}", f"--user restart {service.name}")
    return [unit, Wanted(service.config, example, ours=False)]


def commands_of(service: Service, root: Path, *, changed: bool) -> list[list[str]]:
    """Return what makes systemd take a service in; below another root it can only be enabled."""
    if root != Path("/"):
        return [["systemctl", "--root", str(root), "enable", service.name]]
    ctl = systemctl(mine=service.mine)
    return [
        [*ctl, "daemon-reload"],
        [*ctl, "enable", service.name],
        [*ctl, "restart" if changed else "start", service.name],
    ]


def systemctl(*, mine: bool) -> list[str]:
    """Return the beginning of a command to the system's manager, or to this user's."""
    return ["systemctl", "--user"] if mine else ["systemctl"]


def unseen(service: Service) -> str:
    """Return what of the program its user may not read; empty if it is all there."""
    ids = _ids(service.user)
    read = [*service.reads, *([service.config] if service.config.exists() else [])]
    return next((found for path in read if (found := _closed(path, *ids))), "")


def _ids(user: str | None) -> tuple[int, set[int]]:
    if user is None:
        return -1, set()
    try:
        known = pwd.getpwnam(user)
    except KeyError as error:
        hint = f"make it: useradd --system --shell /usr/sbin/nologin {user}"
        raise UsageError(f"--user: there is no user {user!r} on this system", hint) from error
    return known.pw_uid, set(os.getgrouplist(user, known.pw_gid))


def _closed(path: Path, user: int, groups: set[int]) -> str:
    """Return the first folder on the way, or the file, that is closed to a user."""
    if user == 0:
        return ""
    for step in (*reversed(path.absolute().parents), path):
        found = step.stat()
        need = stat.S_IXOTH if step != path else stat.S_IROTH
        shift = 6 if found.st_uid == user else 3 if found.st_gid in groups else 0
        if not found.st_mode & (need << shift):
            return str(step)
    return ""


def call(commands: Iterable[Sequence[str]]) -> None:
    """Run commands of systemd; the error of one that failed has its last words."""
    for command in commands:
        done = subprocess.run(list(command), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            words = (done.stderr.strip().splitlines() or ["no error message"])[-1]
            raise ServiceError(
                f"`{' '.join(command)}` failed: {words}", "see `journalctl -xe`, then try again"
            )


def systemd_runs(*, mine: bool = False) -> bool:
    """Return whether this machine was started by systemd (sd_booted(3)), or this user has one."""
    if mine:
        folder = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.geteuid()}")
        return (Path(folder) / "systemd/private").exists() and which("systemctl") is not None
    return Path("/run/systemd/system").is_dir() and which("systemctl") is not None
