"""What a program would hold in memory, reckoned on torch's meta device."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedagent_task.errors import ProgramError

MAX_CALLS = 200_000
"""Kernels of one pass forwards and backwards; a long recurrent layer has many."""


class Watch(TorchDispatchMode):  # type: ignore[misc] # torch is not there to mypy
    """Counts the bytes of all live tensors, and refuses what goes over the limit.

    Tensors that autograd keeps for the way back are live. `at` names the node that runs.
    """

    def __init__(self, limit: int, at: str) -> None:
        super().__init__()
        self.limit, self.live, self.peak = limit, 0, 0
        self.at = at
        self._calls = 0
        self._alive: dict[int, weakref.ref[object]] = {}

    def __torch_dispatch__(
        self,
        func: "torch._ops.OpOverload",
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Run one kernel and count what it made."""
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise ProgramError(self.at, f"makes more than {MAX_CALLS} calls")
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else (result,):
            if isinstance(one, torch.Tensor):
                self.add(one)
        return result

    def add(self, tensor: "torch.Tensor") -> None:
        """Count a tensor's storage, once however many views there are; raises `ProgramError`."""
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001 - the storage's identity, as torch's own tools take it
        if key in self._alive:
            return
        size = int(storage.nbytes())
        self.live += size
        self.peak = max(self.peak, self.live)
        if self.live > self.limit:
            raise ProgramError(
                self.at, f"would hold {self.live} bytes, the limit is {self.limit} here"
            )

        def gone(_: object) -> None:
            self.live -= size
            self._alive.pop(key, None)

        self._alive[key] = weakref.ref(storage, gone)
