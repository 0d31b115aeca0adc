"""strSAGA: variance-reduced steps on a stream (ALGORITHMS section 7).

Every other iteration moves one random new sample into a set, with a gradient of zero; every
iteration steps on a random sample of the set, corrected by its last gradient and by the mean
of all of them. A new global model empties the set. Iterations are counted through the round,
not anew for each arrival step, so that one iteration a step learns too.

``python -m fedagent_agent.learners.strsaga`` compiles the loops once on a machine, and writes a
marker next to what numba keeps; it ends after `LONGEST_S` at the latest. A task that may not wait
for them learns in numpy unless the marker is there, and starts such a process beside the work;
``FEDAGENT_WARM=off`` starts none.
"""

import fcntl
import functools
import hashlib
import logging
import os
import platform
import signal
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedagent_protocol.messages import TrainCourse
from fedagent_task.models import Inputs, Labels, Model
from fedagent_task.models.base import Csr
from fedagent_task.recipe.client_terms import NO_TERMS
from fedagent_task.recipe.spec import LearnerSpec, ModelSpec

from .base import Learner, StepResult, Tensors
from .course import Course
from .strsaga_book import Book
from .strsaga_dense import DenseTable, Step
from .strsaga_factors import FactorTable
from .strsaga_loops import HINGE, LOGISTIC, SOFTMAX, SQUARED, SQUARED_HINGE, SagaLoops, compiled
from .strsaga_sparse import SparseTable

VARIABLE = "FEDAGENT_WARM"
LONGEST_S = 1800
"""When the kernel ends a process that compiles still."""
_NICE = 19
_SOURCE = Path(__file__).with_name("strsaga_loops.py")
_started: list[subprocess.Popen[bytes]] = []

_log = logging.getLogger(__name__)

_LOSSES = {"softmax": SOFTMAX, "logistic": LOGISTIC, "linear": SQUARED}
_HINGES = {"squared-hinge": SQUARED_HINGE, "hinge": HINGE}


Table = DenseTable | SparseTable | FactorTable
"""What strSAGA knows of samples and weights; one for each form of samples."""


class StrSaga(Learner):
    """One iteration is one step on one sample; weights are float64 within a round.

    The buffer and the set are bounded by `spec`; an iteration takes three random numbers, however
    the iterations are called.
    """

    def __init__(
        self,
        model: Model,
        spec: LearnerSpec,
        rng: np.random.Generator,
        *,
        compile_loops: bool | None = True,
    ) -> None:
        self._model, self._spec, self._rng = model, spec, rng
        # A round has no time for a compiler.
        ready = ready_or_start() if compile_loops is None else compile_loops
        self._loops = compiled() if ready else None
        self._book = Book(spec.cap, self._loops)
        self._base: Tensors = model.init(0)
        self._course = Course(spec, NO_TERMS)
        self._lost = 0
        if self._loops:
            warm_up(self._loops, ratings=model.spec.kind == "mf", many=model.spec.outputs > 1)
        self._table = self._table_for(sparse=False)

    @property
    def default_iterations(self) -> int:
        """Two for each waiting sample, so that all of them are moved."""
        return max(1, 2 * self._book.waiting)

    @property
    def num_samples(self) -> int:
        """Samples that were moved into the set since `begin`."""
        return self._book.moved

    @property
    def dropped(self) -> int:
        """Samples that were replaced while they waited, or refused by a full set."""
        return self._lost + self._book.refused

    @property
    def course(self) -> TrainCourse:
        """The root of the mean squared loss, of blocks: samples are not told apart."""
        return self._course.told()

    def begin(self, base: Tensors, number: int = 1) -> None:
        """Start from a new global model with an empty set; waiting samples stay."""
        del number
        self._course.begin(self._spec.rate)
        self._base = base
        self._lost += self._book.clear()
        self._table.begin(base)

    def absorb(self, x: Inputs, y: Labels) -> None:
        """Let new samples wait, in place of those that still do."""
        size = self._spec.buffer
        self._lost += max(0, len(y) - size)
        x, y = x[-size:], y[-size:]
        if isinstance(x, Csr) != isinstance(self._table, SparseTable) and self._book.size == 0:
            self._table = self._table_for(sparse=isinstance(x, Csr))
        self._lost += self._book.offer(len(y))
        self._table.offer(x, y, self._book.room)

    def step(self, iterations: int) -> StepResult:
        """Do this many iterations, none if no sample has come."""
        if self._book.size == self._book.waiting == 0:
            return StepResult(0, 0, 0.0)
        total, seen, left = 0.0, 0, iterations
        while left > 0:
            count = min(left, self._table.block)
            moves = self._book.moves(self._rng.random((count, 3)))
            total += self._table.advance(moves)
            seen += moves.steps
            left -= count
        self._course.add(total / max(seen, 1), seen)
        return StepResult(iterations, seen, total / max(seen, 1))

    def update(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the float32 difference to the model that `begin` gave."""
        now = self._table.weights()
        return {
            name: np.asarray(now[name] - tensor, np.float32, order="C")
            for name, tensor in self._base.items()
        }

    def _table_for(self, *, sparse: bool) -> Table:
        table = create_table(self._model.spec, self._spec.rate, self._loops, sparse=sparse)
        table.begin(self._base)
        return table


def create_table(spec: ModelSpec, rate: float, loops: SagaLoops | None, *, sparse: bool) -> Table:
    """Return an empty table for a model's samples."""
    if spec.kind == "mf":
        return FactorTable(spec, rate=rate, loops=loops)
    loss = _LOSSES.get(spec.kind, _HINGES[spec.loss])
    kind = SparseTable if sparse else DenseTable
    return kind(Step(loss, spec.outputs, spec.features, rate, spec.l2, loops))


@functools.cache
def warm_up(loops: SagaLoops, *, ratings: bool, many: bool) -> None:
    """Compile what a model needs, so that no training waits for it."""
    spec = ModelSpec(kind="softmax", features=1, classes=2)
    if ratings:
        spec = ModelSpec(kind="mf", features=2, users=1, items=1, rank=1)
    elif not many:
        spec = ModelSpec(kind="logistic", features=1)
    for sparse in (False,) if ratings else (False, True):
        table, book = create_table(spec, 0.1, loops, sparse=sparse), Book(1, loops)
        book.offer(1)
        table.offer(np.zeros((1, spec.features), np.float32), np.zeros(1), 1)
        table.advance(book.moves(np.zeros((2, 3))))


def ready_or_start() -> bool:
    """Return whether compiled loops can be used at once; start to compile them if not.

    At most one process is started by this one; it does nothing while another compiles.
    """
    if find_spec("numba") is None:
        return False
    if marker().exists():
        return True
    for process in _started:
        process.poll()  # leaves no zombie
    if os.environ.get(VARIABLE) == "off" or _started:
        return False
    command = (sys.executable, "-P", "-m", __name__)
    nothing = subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
        )
    except OSError as error:
        _log.info("strsaga learns in numpy: cannot compile its loops: %s", error.strerror)
        return False
    _started.append(process)
    _log.info("strsaga learns in numpy now; its loops are being compiled for the next start")
    return False


def compile_all() -> None:
    """Compile everything and write the marker, unless another process is at it."""
    ready = marker()
    ready.parent.mkdir(parents=True, exist_ok=True)
    with ready.with_suffix(".lock").open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        loops = None if ready.exists() else compiled()
        if loops is None:
            return
        for ratings, many in ((False, False), (False, True), (True, False)):
            warm_up(loops, ratings=ratings, many=many)
        ready.touch()


def _folder() -> Path:
    """Return where numba keeps what it compiled, without importing it, or its parent."""
    named = os.environ.get("NUMBA_CACHE_DIR")
    if named:
        return Path(named)
    beside = _SOURCE.parent / "__pycache__"
    if os.access(beside if beside.exists() else beside.parent, os.W_OK):
        return beside
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "numba"


def marker() -> Path:
    """Return the file that is there once the loops are compiled, named by what they depend on."""
    python = f"{platform.python_implementation()}-{platform.python_version()}"
    what = f"numba-{version('numba')} {python} {platform.machine()}\n".encode()
    name = hashlib.sha256(what + _SOURCE.read_bytes()).hexdigest()[:16]
    return _folder() / f"fedagent-strsaga.{name}.ready"


if __name__ == "__main__":
    signal.alarm(LONGEST_S)
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    compile_all()
