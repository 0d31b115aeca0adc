"""Task files with something changed, by the thousand: what a device makes of them.

Each thousand runs in a process of its own, so that a crash of a kernel would be seen and counted.
"""

import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

TRIALS, PART = 10_000, 1000


def rows() -> Iterator[dict[str, object]]:
    if find_spec("torch") is None:
        yield {"bench": "hostile", "skipped": "torch is not installed"}
        return
    total: Counter[str] = Counter()
    slowest, peak = 0.0, 0
    with tempfile.TemporaryDirectory() as folder:
        mark = Path(folder) / "executed"
        for start in range(0, TRIALS, PART):
            done = subprocess.run(
                [sys.executable, "-m", "bench.hostile", str(start), str(mark)],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                total["crashed"] += 1
                sys.stderr.write(done.stdout[-400:] + done.stderr[-4000:])
            for line in done.stdout.splitlines():
                kind, _, rest = line.partition(" ")
                if kind == "most":
                    seconds, size = rest.split()
                    slowest, peak = max(slowest, float(seconds)), max(peak, int(size))
                elif kind != "at":
                    total[kind] += 1
                    if kind == "uncaught":
                        sys.stderr.write(line + "\n")
        yield {
            "bench": "hostile",
            "trials": TRIALS,
            **dict(total),
            "uncaught": total["uncaught"],
            "executed": int(mark.exists()),
            "slowest_s": round(slowest, 2),
            "peak_mb": round(peak / 1024),
        }


def _part(start: int, mark: Path) -> None:
    import torch

    from fedagent_task.program.making import make_task
    from fedagent_task.task_file import encode_task
    from tests.fakes.hostile_tasks import Mutator, bomb, tried
    from tests.fakes.torch_models import family

    torch.set_num_threads(1)
    names = ("mlp", "gru", "transformer", "two-inputs", "lora", "autoencoder")
    bodies = [encode_task(make_task(family(name)).task) for name in names]
    slowest = 0.0
    for seed in range(start, start + PART):
        body = Mutator(seed, bodies[seed % len(bodies)], bomb(mark)).mutated()
        sys.stdout.write(f"at {seed}\n")
        sys.stdout.flush()
        before = time.process_time()
        try:
            sys.stdout.write(f"{tried(body)}\n")
        except BaseException as error:  # noqa: BLE001 - this is what is counted
            sys.stdout.write(f"uncaught {seed} {type(error).__name__}: {str(error)[:300]!r}\n")
        taken = time.process_time() - before
        if taken > 2:
            sys.stderr.write(f"seed {seed} took {taken:.1f} s\n")
        slowest = max(slowest, taken)
    sys.stdout.write(f"most {slowest} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}\n")


if __name__ == "__main__":
    _part(int(sys.argv[1]), Path(sys.argv[2]))
