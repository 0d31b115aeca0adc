"""`run_local`: a whole federation on this machine, with a task and data of one's own."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from fedagent_cli.demo.run import Heard
from fedagent_cli.errors import UsageError
from fedagent_cli.output import echo
from fedagent_cli.places import dated, empty_folder
from fedagent_cli.report.page import write_report
from fedagent_cli.report.run_report import read_run_report
from fedagent_coordinator import policies
from fedagent_task import aggregation
from fedagent_testbed.local_fleet import Fleet, FleetError, LocalFleet, remembered, tidy

from .deal import deal_out
from .model import Model, load_model
from .run_data import RunData, read
from .task import Task

Named = str | tuple[str, Mapping[str, object]]
"""A name, or a name and parameters."""
PRICE = 1.0
"""What a device asks for one round, in credits."""


@dataclass(frozen=True, slots=True)
class Run:
    """A federation that ran on this machine, and where its books are.

    Attributes:
        folder: Logs and data.
        rounds: How many rounds were done.
        metrics: The newest value of whatever was measured of the model.
        seconds_to_first_round: From the call on; None where none was done.
    """

    folder: Path
    id: str
    rounds: int
    metrics: Mapping[str, float]
    seconds: float
    seconds_to_first_round: float | None

    @property
    def data_dir(self) -> Path:
        """Data directory of the coordinator, as commands take it."""
        return self.folder / "coordinator"

    def read(self) -> RunData:
        """Return rounds, devices, orders and ledger as columns."""
        return read(self)

    def load_model(self, round: int | None = None) -> Model:  # noqa: A002 - what it is
        """Return the global model after a round; none for the newest."""
        return load_model(self, round)

    def report(self) -> Path:
        """Write the run as one page of HTML, and return its path."""
        return write_report(read_run_report(self.data_dir), self.folder)


def run_local(
    task: Task | str | os.PathLike[str],
    *,
    agents: int = 8,
    edges: int = 1,
    rounds: int | None = None,
    data: object = None,
    test: object = None,
    dirichlet: float | None = None,
    policy: Named | None = None,
    strategy: Named | None = None,
    budget: float | None = None,
    seed: int | None = None,
    sets: Mapping[str, object] | None = None,
    folder: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Run:
    """Run coordinator, edges and devices as processes of this machine until the last round.

    It may be called from a script or a notebook. Ctrl-C ends all processes, then raises.

    Args:
        task: A task, or what `Task.load` takes.
        agents: Devices, 1 to 64; each asks one credit for a round.
        edges: Edge aggregators, 1 to 16.
        rounds: How many; none for as many as the task says.
        data: ``(x, y)`` to deal over the devices, as `deal.pair` takes them; a list of
            ``(x, y)``, or of streams as `fedagent start --stream` takes them, one for each; a
            stream with ``{i}`` and ``{n}`` for a device's number and how many there are; none:
            the bundled digits.
        test: What the model is evaluated by: ``(x, y)``; a share of `data` to hold out; a dataset
            as a recipe names it; none for what the task says.
        dirichlet: Deal classes by Dir(`dirichlet`): 0.3 is very uneven; none deals at random.
        policy: Who trains: a name, or a name and its parameters; none for the task's.
        strategy: How updates become a model, in the same way.
        budget: Credits that an edge may spend in a round; none pays everybody.
        seed: Of everything random; none for the task's.
        sets: More keys of the recipe, e.g. ``{"learner.rate": 0.05}``.
        folder: For data, logs and books, empty or not there; none for a new one in
            ``fedagent-runs``.
        progress: Print a line a round.

    Raises:
        UsageError: Something does not fit; it says what does.
        FedagentError: The task with these settings is no recipe.
        FleetError: A process failed, or nothing happened for too long; it names the log.
        KeyboardInterrupt: Ctrl-C; what was done until then can be read.
    """
    begun_at = time.monotonic()
    for what, value, most in (("agents", agents, 64), ("edges", edges, 16)):
        if not 1 <= value <= most:
            raise UsageError(f"{what} is {value}", f"give 1 to {most}")
    one = task if isinstance(task, Task) else Task.load(task)
    budget = agents * PRICE if budget is None else budget
    if budget < PRICE:
        raise UsageError(f"budget is {budget:g}, but a device asks {PRICE:g}", "give 1 or more")
    chosen = _settings(rounds=rounds, policy=policy, strategy=strategy, budget=budget)
    recipe = one.recipe
    wanted = dated("fedagent-runs") if folder is None else Path(folder)
    place = empty_folder(wanted, hint="name another folder")
    dealt = deal_out(
        data,
        test,
        labels=recipe.data.labels,
        agents=agents,
        dirichlet=dirichlet,
        seed=recipe.seed if seed is None else seed,
        folder=place / "data",
    )
    if dealt.dataset is not None:
        chosen["evaluation.dataset"] = dealt.dataset
    if recipe.model.kind == "graph" and dealt.largest > recipe.learner.buffer:
        # What is given is there to be learnt from; a recipe says how much of a stream is kept.
        chosen["learner.buffer"] = dealt.largest
    every = [f"{key}={_toml(value)}" for key, value in {**chosen, **(sets or {})}.items()]
    path = one.path_in(place)
    checked = one.checked(every)
    policies.create(checked.policy.name, **checked.policy.params)
    aggregation.create(checked.aggregation.name, **checked.aggregation.params)
    if not checked.rounds.count:
        raise UsageError("the task sets no number of rounds", "give rounds, e.g. rounds=20")
    fleet = Fleet(
        recipe=path,
        sets=tuple(every),
        seed=checked.seed if seed is None else seed,
        directory=place,
        agents={
            f"agent-{i}": {"stream": stream, "price": {"base": PRICE, "per_compute": 0.0}}
            for i, stream in enumerate(dealt.streams, 1)
        },
        edges={f"edge-{i}": {} for i in range(1, edges + 1)},
        max_wait_s=checked.rounds.max_wait_s,
    )
    # Only the main thread may take Ctrl-C and the like.
    main = threading.current_thread() is threading.main_thread()
    with remembered() if main else nullcontext(lambda: 0) as caught:
        first_round_at = _played(fleet, caught, checked.rounds.count, progress=progress)
        ended_by = caught()
    tidy(place, (*fleet.agents, *fleet.edges))
    if ended_by:
        if progress:
            echo(f"ended early; read the data it left, if any, with fedagent.read({str(place)!r})")
        if ended_by == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + ended_by)
    first = None if first_round_at is None else round(first_round_at - begun_at, 3)
    return _result(place, checked.rounds.count, round(time.monotonic() - begun_at, 3), first)


def _played(
    fleet: Fleet, caught: Callable[[], int], rounds: int, *, progress: bool
) -> float | None:
    """Run the fleet to its end; return when its first round was done, by our monotonic clock."""
    heard = Heard(rounds)
    with LocalFleet(fleet, stopped=caught) as running:
        running.start_all()
        for came in filter(None, running.watch()):
            if (line := heard.take(*came)) and progress:
                echo(line)
                sys.stdout.flush()
    return running.first_round_at


def _settings(
    *, rounds: int | None, policy: Named | None, strategy: Named | None, budget: float
) -> dict[str, object]:
    # Nobody watches the schedule of a run on one machine.
    made: dict[str, object] = {"rounds.every_s": 0, "budget.per_edge": budget}
    if rounds is not None:
        made["rounds.count"] = rounds
    for section, wanted in (("policy", policy), ("aggregation", strategy)):
        if wanted is not None:
            name, params = (wanted, {}) if isinstance(wanted, str) else wanted
            made |= {f"{section}.name": name, f"{section}.params": params}
    return made


def _result(folder: Path, wanted: int, seconds: float, first: float | None) -> Run:
    found = read(folder)
    done = found.summary["rounds_done"]
    if done != wanted and not found.summary["conclusion"]:
        raise FleetError(f"{done} of {wanted} rounds done", f"see {folder / 'coordinator.log'}")
    if not found.summary["updates_used"]:
        reasons = [one for one in found.orders.get("reason", []) if one]
        why = f": {reasons[-1]}" if reasons else ""
        raise FleetError(f"no update of any device was used{why}", f"see the logs in {folder}")
    metrics = found.summary["metrics"]
    assert isinstance(metrics, Mapping)
    return Run(
        folder=folder,
        id=found.run,
        rounds=int(str(done)),
        metrics=dict(metrics),
        seconds=seconds,
        seconds_to_first_round=first,
    )


def _toml(value: object) -> str:
    """Return a value as TOML writes it in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(str(value) if isinstance(value, Path) else value)
