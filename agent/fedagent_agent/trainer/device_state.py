"""What a device keeps of a task over rounds and restarts: one safetensors file per run and task.

Tensors that stay on the device, and SCAFFOLD's control variates. A file that cannot be used
begins anew: the next rounds make up for it, where a refusal would end the device's part.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedagent_agent.learners import Learner
from fedagent_node.data_dir import write_private
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.failpoints import Checkpoint, hit
from fedagent_protocol.tensors import encode_tensors, locate, tensor_at

Shape = tuple[int, ...]
NO_SHAPES: Mapping[str, Shape] = {}
KEPT = 16
"""Files in the folder: those of the runs that were trained last."""

_log = logging.getLogger(__name__)


class DeviceState:
    """Brings a learner what it kept, and keeps what it has after a round.

    `shapes` are those of tensors by name, as far as the task says them.
    """

    def __init__(
        self, shapes: Mapping[str, Shape] = NO_SHAPES, *, checkpoint: Checkpoint = hit
    ) -> None:
        self._shapes, self._checkpoint = shapes, checkpoint
        self._path: Path | None = None
        self.lost = 0
        """Files that could not be read."""

    def bring(self, learner: Learner, path: Path) -> None:
        """Let a learner go on where this run's last round ended, or begin anew."""
        if path == self._path:
            return
        learner.restore(self._read(path))
        self._path = path

    def keep(self, learner: Learner, path: Path | None) -> None:
        """Settle a round whose update is durable; `OSError`: the disk refused.

        Without a path it is kept in this process only.
        """
        kept = learner.keep()
        if path is None or not kept:
            return
        self._checkpoint("agent.state.before-write")
        write_private(path, encode_tensors(kept))
        self._checkpoint("agent.state.kept")
        files = sorted(path.parent.iterdir(), key=lambda one: one.stat().st_mtime_ns)
        for old in files[:-KEPT]:
            old.unlink(missing_ok=True)

    def forget(self) -> None:
        """Read the file again before the next round: what is in memory is not what was kept."""
        self._path = None

    def _read(self, path: Path) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
        try:
            data = path.read_bytes()
            tensors = {one.spec.name: tensor_at(data, one) for one in locate(data)}
        except FileNotFoundError:
            return {}
        except (OSError, ProtocolError) as error:
            return self._give_up(path, str(error))
        kept = {n: t.astype(np.float32) for n, t in tensors.items() if t.dtype == np.float32}
        if len(kept) < len(tensors) or not all(np.isfinite(t).all() for t in kept.values()):
            return self._give_up(path, "a tensor is not finite float32")
        if any(self._shapes.get(name, t.shape) != t.shape for name, t in kept.items()):
            return self._give_up(path, "a tensor is of another shape")
        return kept

    def _give_up(
        self, path: Path, why: str
    ) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
        self.lost += 1
        _log.warning(
            "the saved learner state of %s is lost (%s): it starts again from nothing",
            path.name,
            why,
        )
        return {}
