"""Putting a service in place: files, rights, systemctl."""

import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from fedagent_cli import places
from fedagent_cli.errors import ServiceError, UsageError

from .unit import Service, unit_text

UNITS = Path("/etc/systemd/system")
SETTINGS = Path("/etc/fedagent")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file of a service.

    Attributes:
        ours: It is written whatever stands there; otherwise only where there is none.
    """

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
    """Make the data directory that was named, for the user that was named."""
    if service.data_dir is not None and service.user is not None:
        known = pwd.getpwnam(service.user)
        service.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chown(service.data_dir, known.pw_uid, known.pw_gid)


def files_of(service: Service) -> list[Wanted]:
    """Return the files that make the service."""
    folder = places.unit_folder()
    bundled = (folder / f"{service.name}.service").read_text("utf-8")
    example = (folder / f"{service.role}.toml").read_text("utf-8")
    unit = Wanted(UNITS / f"{service.name}.service", unit_text(bundled, service), ours=True)
    return [unit, Wanted(service.config, example, ours=False)]


def commands_of(service: Service, root: Path, *, changed: bool) -> list[list[str]]:
    """Return what makes systemd take a service in; below another root it can only be enabled."""
    if root != Path("/"):
        return [["systemctl", "--root", str(root), "enable", service.name]]
    return [
        ["systemctl", "daemon-reload"],
        ["systemctl", "enable", service.name],
        ["systemctl", "restart" if changed else "start", service.name],
    ]


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
        raise UsageError(f"--user: there is no user {user!r} here", hint) from error
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
    """Run commands of systemd.

    Raises:
        ServiceError: One of them failed; the line has its last words.
    """
    for command in commands:
        done = subprocess.run(list(command), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or ["without a word"])[-1]
            raise ServiceError(
                f"`{' '.join(command)}` failed: {said}", "see `journalctl -xe`, then try again"
            )


def ask(*words: str) -> str:
    """Return the first line that systemctl says; it may well say no."""
    command = ["systemctl", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout.strip().splitlines() or [""])[0]


def systemd_runs() -> bool:
    """Return whether this machine was started by systemd (sd_booted(3))."""
    return Path("/run/systemd/system").is_dir() and which("systemctl") is not None
