"""What the runtime wants of the trainer, one thing after the other."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from .outward import OpenStream, StartEvaluation, StartTraining
from .trainer_client import (
    TrainerClient,
    TrainerDiedError,
    TrainerMemoryError,
    TrainerRefusedError,
)
from .trainer_wire import EvaluationResult, Failed, Opened, Refused, Trained

MAX_WAITING = 16

_log = logging.getLogger(__name__)

OnOpened = Callable[[str, Opened | Refused | Failed], None]
OnTrained = Callable[[int, Trained | Failed], None]
OnEvaluated = Callable[[int, EvaluationResult | Failed], None]

Job = OpenStream | StartTraining | StartEvaluation
Result = Opened | Refused | Trained | EvaluationResult | Failed


class TrainerJobs:
    """A queue in front of the trainer process.

    Every job has exactly one answer, also those that are cancelled or find no room.

    Args:
        on_opened: Gets the task's digest and the answer to an `OpenStream`.
        on_trained: Gets the job's number and the answer to a `StartTraining`.
        on_evaluated: Gets the job's number and the answer to a `StartEvaluation`.
        client: The process; a plain one by default.
    """

    def __init__(
        self,
        on_opened: OnOpened,
        on_trained: OnTrained,
        on_evaluated: OnEvaluated,
        client: TrainerClient | None = None,
    ) -> None:
        self._on_opened = on_opened
        self._on_trained = on_trained
        self._on_evaluated = on_evaluated
        self._client = client if client is not None else TrainerClient()
        self._waiting: deque[Job] = deque()
        self._more = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._running: int | None = None

    def put(self, job: Job) -> None:
        """Have a job done after those that wait."""
        if len(self._waiting) >= MAX_WAITING:
            asyncio.get_running_loop().call_soon(
                self._answer, job, Failed(job=0, reason="error", detail="too many jobs wait")
            )
            return
        self._waiting.append(job)
        self._more.set()
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._work(), name="trainer")

    def cancel(self, job: int) -> None:
        """Give up a training, whether it runs or waits."""
        if self._running == job:
            self._client.cancel()
            return
        for waiting in list(self._waiting):
            if isinstance(waiting, StartTraining) and waiting.job == job:
                self._waiting.remove(waiting)
                failed = Failed(job=job, reason="cancelled")
                asyncio.get_running_loop().call_soon(self._answer, waiting, failed)

    async def close(self) -> None:
        """End the process, whatever it does."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        await self._client.close()

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._more.clear()
                await self._more.wait()
            job = self._waiting.popleft()
            self._answer(job, await self._do(job))

    async def _do(self, job: Job) -> Result:
        try:
            if isinstance(job, OpenStream):
                return await self._open(job)
            if isinstance(job, StartEvaluation):
                return await self._client.evaluate(job.model, moments=job.moments)
            self._running = job.job
            return await self._client.train(
                job.model,
                job.out,
                iterations=job.iterations,
                timeout_s=job.timeout_s,
                load_limit_s=job.load_limit_s,
            )
        except Exception as error:  # noqa: BLE001 - the answer carries it on; the queue must go on
            _log.exception("the trainer could not be used")
            return Failed(job=0, reason="error", detail=type(error).__name__)
        finally:
            self._running = None

    async def _open(self, job: OpenStream) -> Opened | Refused | Failed:
        try:
            return await self._client.open(
                job.task,
                job.stream,
                seed=job.seed,
                offset=job.offset,
                slow_s=job.slow_s,
                held_out=job.held_out,
            )
        except TrainerRefusedError as error:
            return Refused(job=0, key=error.key, detail=error.detail)
        except TrainerMemoryError as error:
            return Failed(job=0, reason="memory", detail=error.detail)
        except TrainerDiedError as error:
            return Failed(job=0, reason=error.reason)

    def _answer(self, job: Job, result: Result) -> None:
        if isinstance(job, OpenStream):
            if isinstance(result, Opened | Refused | Failed):
                self._on_opened(job.digest, result)
        elif isinstance(job, StartEvaluation):
            if isinstance(result, EvaluationResult | Failed):
                self._on_evaluated(job.job, result)
        elif isinstance(result, Trained | Failed):
            self._on_trained(job.job, result)
