"""The unit of a role, made of the bundled one. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

HOMES = tuple(map(PurePosixPath, ("/home", "/root", "/run/user")))
"""What ``ProtectHome=yes`` hides."""
_TLS = ("ca", "cert", "key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A role as a service.

    Attributes:
        program: What runs fedagent: one file, or an interpreter and its arguments.
        reads: Files that the program is made of.
        config: The settings' file.
        user: Whom it runs as; None for a user that systemd makes up for it.
        data_dir: Instead of the one below ``/var/lib``; needs a user.
        files: Files of root that the service reads: ``tls-ca``, ``tls-cert``, ``tls-key`` and
            ``password-file``, by the name of their option.
    """

    role: str
    program: Sequence[str]
    reads: Sequence[Path]
    config: Path
    user: str | None = None
    data_dir: Path | None = None
    files: Mapping[str, Path] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The unit without its suffix."""
        return f"fedagent-{self.role}"

    @property
    def in_a_home(self) -> bool:
        """Whether anything that it reads lies where ``ProtectHome=yes`` hides it."""
        read = [*self.reads, self.config]
        read += [self.data_dir] if self.data_dir is not None else []
        return any(path.is_relative_to(home) for path in read for home in HOMES)


def unit_text(bundled: str, service: Service) -> str:
    """Return the bundled unit with a service's own program, user and files."""
    text = re.sub(r"^ExecStart=.*$", lambda _: _start(service), bundled, flags=re.MULTILINE)
    text = text.replace(f"/etc/fedagent/{service.role}.toml", str(service.config))
    if service.user is not None:
        text = text.replace("DynamicUser=yes", f"User={service.user}")
    if service.in_a_home:
        text = text.replace("ProtectHome=yes", "ProtectHome=read-only")
    more = [f"LoadCredential={name}:{path}" for name, path in service.files.items()]
    more += [f"ReadWritePaths={_word(str(service.data_dir))}"] if service.data_dir else []
    return text.replace("\nRestart=", "".join(f"\n{line}" for line in more) + "\nRestart=", 1)


def _start(service: Service) -> str:
    group = [] if service.role == "agent" else [service.role]
    words = [*service.program, *group, "start", "--config", str(service.config)]
    if service.data_dir is not None:
        words += ["--data-dir", str(service.data_dir)]
    line = "ExecStart=" + " ".join(map(_word, words))
    return line + "".join(f" --{name} ${{CREDENTIALS_DIRECTORY}}/{name}" for name in service.files)


def _word(text: str) -> str:
    """Return a word as systemd reads it."""
    safe = text.replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[\w@%+=:,./$-]+", safe):
        return safe
    escaped = safe.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
