"""Flower, the bare broker, and fedagent in one run: ``python -m bench.peers``."""

import json
import subprocess
import sys

from bench import rounds

PEERS = ("bench.peers.flower_rounds", "bench.echo")


def main() -> int:
    for module in PEERS:
        code = subprocess.run([sys.executable, "-m", module], check=False).returncode
        if code:
            return code
    for case in rounds.ALL:
        print(json.dumps(rounds.measure(case)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
