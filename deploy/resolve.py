"""Say what of fedagent's dependencies has a wheel for a board: `deploy/resolve.py [EXTRA ...]`.

pip resolves for 64-bit ARM with wheels alone; for 32-bit ARM every package of that answer is
asked for a wheel, and who has none is compiled on the board (or comes from its system's own
index). Ends with 1 if 64-bit ARM lacks one.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
GLIBC = (17, 27, 28, 31, 34, 35, 36)  # up to Debian 12
VERSIONS = ("3.11", "3.12", "3.13")


def tags(machine: str) -> list[str]:
    """Return pip's arguments for a machine."""
    names = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC]
    names += [f"manylinux2014_{machine}", f"linux_{machine}"]
    return [word for name in names for word in ("--platform", name)]


def resolved(wanted: list[str], machine: str, python: str, *more: str) -> dict[str, str] | str:
    """Return the file of each package, by name and version; or what pip has to say."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"),
            *("--report", str(report), "--target", folder, "--only-binary=:all:"),
            *("--python-version", python, *tags(machine), *more, *wanted),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return errors[-1] if errors else done.stderr.strip()
        found = json.loads(report.read_text("utf-8"))["install"]
    return {
        f"{one['metadata']['name']}=={one['metadata']['version']}": Path(
            one["download_info"]["url"]
        ).name
        for one in found
    }


def main() -> int:
    """Print a table of packages; return the exit code."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = list(project["dependencies"])
    for extra in sys.argv[1:]:
        wanted += project["optional-dependencies"][extra]
    lacking = 0
    for python in VERSIONS:
        wide = resolved(wanted, "aarch64", python)
        if isinstance(wide, str):
            print(f"Python {python}, arm64: {wide}")
            lacking += 1
            continue
        print(f"Python {python}, arm64: {len(wide)} packages, a wheel of each")
        if python == VERSIONS[0]:
            narrow(wide, python)
    return int(lacking > 0)


def narrow(wide: dict[str, str], python: str) -> None:
    """Print what 32-bit ARM has of the same packages."""
    print("\n| package | arm64 | armv7 |\n| --- | --- | --- |")
    for package, file in sorted(wide.items(), key=lambda one: one[0].lower()):
        anywhere = file.endswith("-none-any.whl")
        has = anywhere or isinstance(resolved([package], "armv7l", python, "--no-deps"), dict)
        kind = "pure Python" if anywhere else "wheel"
        print(f"| {package.replace('==', ' ')} | {kind} | {kind if has else 'from source'} |")


if __name__ == "__main__":
    sys.exit(main())
