"""Runs of a comparison on a Ray cluster (optional package `ray`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedagent_cli.errors import MissingError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from fedagent_testbed.study import History
    from fedagent_testbed.study.jobs import Job


class RayPool:
    """Submits every run as a task of its own; the cluster needs fedagent installed."""

    def submit(self, job: "Job", /, *args: object) -> "Future[History]":
        """Start a job."""
        import ray  # noqa: PLC0415 - optional package

        future: Future[History] = ray.remote(job).remote(*args).future()
        return future


@contextmanager
def ray_pool(address: str | None) -> Iterator[RayPool | None]:
    """Connect to a cluster while the block runs; ``local`` starts one here, None asks for none.

    Raises:
        MissingError: Ray is not installed, or nothing answers at the address.
    """
    if address is None:
        yield None
        return
    try:
        import ray  # noqa: PLC0415 - optional package
    except ModuleNotFoundError as error:
        raise MissingError("the package ray is not installed", "pip install ray") from error
    try:
        ray.init(
            address=None if address == "local" else address,
            include_dashboard=False if address == "local" else None,
            log_to_driver=False,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise MissingError(f"no Ray cluster at {address}: {error}", "check the address") from error
    try:
        yield RayPool()
    finally:
        ray.shutdown()
