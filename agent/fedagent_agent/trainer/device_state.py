"""What a device keeps of a task over rounds and restarts: one safetensors file per run and task.

Tensors that stay on the device, and SCAFFOLD's control variates. A file that cannot be used
begins anew: the next rounds make up for it, where a refusal would end the device's part.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedagent_agent.learners import Learner, Tensors
from fedagent_node.data_dir import write_private
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.failpoints import Checkpoint, hit
from fedagent_protocol.tensors import encode_tensors, locate, tensor_at

Shape = tuple[int, ...]
KEPT = 16
"""Files in the folder: those of the runs that were trained last."""

_log = logging.getLogger(__name__)


class DeviceState:
    """Brings a learner what it kept, and keeps what it has after a round.

    `shapes` are those of tensors by name, as far as the task says them.
    """

    def __init__(self, shapes: Mapping[str, Shape], *, checkpoint: Checkpoint = hit) -> None:
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

    def _read(self, path: Path) -> Tensors:
        try:
            data = path.read_bytes()
            tensors = {one.spec.name: tensor_at(data, one) for one in locate(data)}
        except FileNotFoundError:
            return {}
        except (OSError, ProtocolError) as error:
            why = str(error)
        else:
            kept = {n: t.astype(np.float32) for n, t in tensors.items() if t.dtype == np.float32}
            finite = len(kept) == len(tensors) and all(np.isfinite(t).all() for t in kept.values())
            if finite and all(self._shapes.get(n, t.shape) == t.shape for n, t in kept.items()):
                return kept
            why = "a tensor is not finite float32, or of another shape"

        self.lost += 1
        _log.warning(
            "the saved learner state of %s is lost (%s): it starts again from nothing",
            path.name,
            why,
        )
        return {}
