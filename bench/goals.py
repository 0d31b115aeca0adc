"""Goal-directed selection with training: the GDA paper's table and figures beside ours.

    python -m bench.goals                      # all parts: an hour and a half on an idle core
    python -m bench.goals --part table --seeds 3 --only bp-ucb --only fixed
    python -m bench.goals --told --plots docs/images    # play nothing, draw what the file holds

Every run is written to a file as soon as it is over, one line of JSON each, and a run that the
file holds is not made again: stop and go on as you like; delete the file to measure anew. Needs
FEDAGENT_DATA (MNIST). What it shows is in `docs/experiments.md`.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from fedagent_testbed.study import TestbedRecipe, load_recipe, play

from . import goal_figures, goal_measures, goal_trials, goals_report, kept
from .goal_curves import Curves
from .goal_trials import Trials
from .rows import show

Record = dict[str, object]

IMAGES = Path(__file__).parents[1] / "docs" / "images"
RUNS = IMAGES / "gda-runs.jsonl"
SLOT, SLOTS, FEW = 15, 200, 10
SIZES = (20, 50, 100, 200, 500, 1000)
CHANCES = (1.0, 0.75, 0.5)
MUS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
TUNING_SEEDS = (10, 11)
SMALL = ("world.training.samples_per_client=50", "world.training.batch=40")
"""So few that MNIST is enough for a thousand clients; 40 are trained on, one batch."""
SHOWN = ("table", "success")
"""Parts whose runs are drawn slot by slot."""
BOTH = {"bp-ucb": (), "bp-ucb, as printed": ("policies.bp-ucb.cold_start=false",)}
"""bp-ucb with its cold start and without."""


@dataclass(frozen=True, slots=True)
class Case:
    """A policy in a setting.

    Attributes:
        part: Of `PARTS`.
        label: What the documents call it; unique in its part.
        policy: Its name.
        sets: What differs from the recipe `gda-mnist`.
        slots: How many.
    """

    part: str
    label: str
    policy: str
    sets: tuple[str, ...] = ()
    slots: int = SLOTS

    def recipe(self) -> TestbedRecipe:
        return load_recipe("gda-mnist", (f"rounds.count={SLOT * self.slots}", *self.sets))

    def measure(self, seed: int) -> Record:
        """Play it; return mean opinions at the ends of slots, what was tested, and who trained.

        Parts that no picture shows slot by slot keep the mean of the last quarter.
        """
        began = time.process_time()
        run = play(self.recipe(), self.policy, seed)
        end = slice(SLOT - 1, None, SLOT)
        opinion = [round(float(one), 4) for one in run["opinion"][end]]
        shown = self.part in SHOWN
        found: Record = {
            "opinion": opinion if shown else [goals_report.last(opinion)],
            "tested": goals_report.last(run["accuracy"][end].tolist()),
            "cpu_s": round(time.process_time() - began, 1),
        }
        return found | ({"slots": (run.counts // SLOT).tolist()} if shown else {})


@dataclass(frozen=True, slots=True)
class Deciding:
    """The processor time of a policy's decisions, without training.

    Attributes:
        part: ``time``.
        label: Policy, N and K.
        policy: Its name.
        clients: N.
        size: K.
        mu: Exploration, as in the recipe.
    """

    part: str
    label: str
    policy: str
    clients: int
    size: int
    mu: float

    def measure(self, seed: int) -> Record:
        """Return the milliseconds of a slot."""
        ms = goal_measures.slot_ms(self.policy, self.clients, self.size, mu=self.mu, seed=seed)
        return {"slot_ms": round(ms, 4)}


def table() -> Iterator[Case]:
    """Table I: all policies over client sets, N = 20, K = 5."""
    bp = "policies.bp-ucb"
    printed = f"{bp}.cold_start=false"
    for label, policy, sets in (
        ("fixed", "fixed", ()),
        ("random", "random", ()),
        ("round-robin", "round-robin", ()),
        ("quick-init-ucb", "quick-init-ucb", ()),
        ("bp-ucb, mu 3", "bp-ucb", (f"{bp}.mu=3.0",)),
        ("bp-ucb, mu 0.1", "bp-ucb", (f"{bp}.mu=0.1",)),
        ("bp-ucb, as printed, mu 3", "bp-ucb", (f"{bp}.mu=3.0", printed)),
        ("bp-ucb, as printed, mu 1", "bp-ucb", (f"{bp}.mu=1.0", printed)),
        ("bp-ucb, as printed, mu 0.01", "bp-ucb", (f"{bp}.mu=0.01", printed)),
    ):
        yield Case("table", label, policy, sets)


def success() -> Iterator[Case]:
    """Fig. 10: an update arrives with probability theta; 50 samples a client."""
    for label, own in {**BOTH, "quick-init-ucb": (), "random": (), "fixed": ()}.items():
        for chance in CHANCES:
            sets = (f"world.success={chance}", *SMALL, *own)
            yield Case("success", f"{label}, {chance}", label.partition(",")[0], sets)


def tuning() -> Iterator[Case]:
    """Exploration of bp-ucb: 50 samples a client, on seeds that no other part uses."""
    for mu in MUS:
        yield Case("mu", f"bp-ucb, {mu}", "bp-ucb", (f"policies.bp-ucb.mu={mu}", *SMALL))


def sizes() -> Iterator[Case]:
    """Fig. 11 and 12, K = 5, and on to a thousand clients; a quarter has all labels."""
    for label, own in {**BOTH, "quick-init-ucb": (), "random": ()}.items():
        for clients in SIZES:
            sets = (
                f"world.clients={clients}",
                f"world.training.iid_clients={clients // 4}",
                *SMALL,
                *own,
            )
            yield Case("size", f"{label}, {clients}", label.partition(",")[0], sets)


def quarters() -> Iterator[Case]:
    """A quarter of the clients trains, whatever their number; few slots."""
    for label, own in {**BOTH, "quick-init-ucb": (), "random": ()}.items():
        for clients in SIZES:
            size, policy = clients // 4, label.partition(",")[0]
            sets = [
                f"world.clients={clients}",
                f"world.training.iid_clients={size}",
                f"budget.per_edge={size}",
            ]
            if policy != "random":
                sets.append(f"policies.{policy}.clients_per_round={size}")
            yield Case("quarter", f"{label}, {clients}", policy, (*sets, *SMALL, *own), FEW)


@dataclass(frozen=True, slots=True)
class Kinds:
    """What clients think of what they have trained."""

    part: str = "kind"
    label: str = "random sets"

    def measure(self, seed: int) -> Record:
        """Return mean opinions by kind of client."""
        return goal_measures.opinions(seed)


Job = Case | Deciding | Kinds | Trials | Curves


def times() -> Iterator[Deciding]:
    """What a decision costs, K = 5 and K = N / 4."""
    for clients in SIZES:
        for kind, size in (("K = 5", 5), ("K = N/4", clients // 4)):
            for policy, mu in (("bp-ucb", 3.0), ("quick-init-ucb", 0.3)):
                label = f"{policy}, {clients}; {kind}"
                yield Deciding("time", label, policy, clients, size, mu)


PARTS: dict[str, Callable[[], Iterator[Job]]] = {
    "time": times,
    "kind": lambda: iter([Kinds()]),
    "mu": tuning,
    "table": table,
    "success": success,
    "size": sizes,
    "quarter": quarters,
    "stationary-mu": goal_trials.stationary_mu,
    "stationary-own-mu": goal_trials.stationary_own_mu,
    "stationary-600-mu": goal_trials.stationary_600_mu,
    "carried-mu": goal_trials.carried_mu,
    "stationary": goal_trials.stationary,
    "stationary-own": goal_trials.stationary_own,
    "stationary-600": goal_trials.stationary_600,
    "carried": goal_trials.carried,
    "curves": goal_trials.curves,
}
SEEDS: dict[str, Sequence[int]] = {"mu": TUNING_SEEDS, **goal_trials.TUNING_BLOCKS}
"""Of the parts that choose parameters; no other part uses them."""


def play_missing(path: Path, cases: Sequence[Job], seeds: Sequence[int]) -> None:
    """Play what the file does not hold, a seed of everything at a time."""
    for seed in seeds:
        bounded = [c for c in cases if not isinstance(c, Trials | Curves) or seed < c.most]
        kept.play_missing(path, bounded, [seed])


def measured(name: str, seeds: int) -> Iterator[Record]:
    """Play a part anew and yield its rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.jsonl"
        play_missing(path, list(PARTS[name]()), range(seeds))
        yield from goals_report.rows(path)
        yield from goal_figures.rows(path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.goals", description=__doc__)
    parser.add_argument("--part", choices=list(PARTS))
    parser.add_argument("--only", action="append", help="labels, as 'bp-ucb*'; may be repeated")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--plots", type=Path, help="a folder for the pictures")
    parser.add_argument("--told", action="store_true", help="play nothing")
    args = parser.parse_args()
    for part in [args.part] if args.part else PARTS:
        cases = [
            case
            for case in PARTS[part]()
            if any(fnmatchcase(case.label, one) for one in args.only or ["*"])
        ]
        seeds = SEEDS.get(part, range(args.seeds))
        if not args.told:
            play_missing(args.runs, cases, seeds)
    show(goals_report.rows(args.runs))
    show(goal_figures.rows(args.runs))
    if args.plots:
        goals_report.draw(args.runs, args.plots)


if __name__ == "__main__":
    main()
