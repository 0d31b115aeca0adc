"""Look what CI installs up in a database of known vulnerabilities; exit 1 if one is known.

So it does if what is locked was not all looked up, as without a network.
"""

import json
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).with_name("ci.lock")
IGNORED: dict[str, str] = {}
"""Advisories that do not concern us, by id, and why."""


def main() -> int:
    """Print one line for each finding, and one about the whole."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(LOCK), "--require-hashes"]
    options = ["--disable-pip", "--format", "json", "--progress-spinner", "off", "--timeout", "20"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        reason = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        sys.stdout.write(f"audit: no database of advisories, nothing was audited: {reason}\n")
        return 1
    audited = [one for one in packages if "vulns" in one]
    found = [(one, vuln) for one in audited for vuln in one["vulns"] if vuln["id"] not in IGNORED]
    for one, vuln in found:
        fixed = ", ".join(vuln["fix_versions"]) or "none yet"
        name = f"{one['name']} {one['version']}"
        sys.stdout.write(f"audit: {name}: {vuln['id']}; fixed in: {fixed}\n")
    of = f"{len(audited)} of {len(packages)} locked packages were audited"
    sys.stdout.write(f"audit: {of}, {len(found)} advisories\n")
    return 1 if found or not audited or len(audited) < len(packages) else 0


if __name__ == "__main__":
    sys.exit(main())
