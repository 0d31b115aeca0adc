"""Steps of a local optimiser in torch: mlp, cnn, and programs that travel as graphs."""

import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import numpy.typing as npt
import torch

from fedagent_task.errors import TaskFormatError
from fedagent_task.models import Doubles, Floats, Inputs, Labels, Model, Weights
from fedagent_task.models.base import densed
from fedagent_task.models.graph import Graph
from fedagent_task.program.torch_program import Batch, TorchProgram
from fedagent_task.recipe.client_terms import NO_TERMS, ClientTerms
from fedagent_task.recipe.shapes import POOL
from fedagent_task.recipe.spec import LearnerSpec, ModelSpec

from .base import Tensors, failed_code
from .steps import Arrays

_HINT = {
    "cuda": "install a torch built for it and its driver, or write auto",
    "mps": "it exists on Apple computers only; write auto",
}


def device_of(spec: LearnerSpec) -> "torch.device":
    """Return the device that a recipe asks for; ``auto`` is cuda, else mps, else the processor.

    Raises:
        TaskFormatError: It is not here, or cannot compute in the precision asked for.
    """
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    name: str = spec.device
    if name == "auto":
        name = next((one for one, there in here.items() if there), "cpu")
    elif not here.get(name, True):
        raise TaskFormatError("learner.device", f"{name} is not on this device: {_HINT[name]}")
    if spec.precision == "float16" and name != "cuda":
        detail = f"float16 needs cuda, and this device computes on {name}; write bfloat16"
        raise TaskFormatError("learner.precision", detail)
    return torch.device(name)


def autocast_of(spec: LearnerSpec, device: "torch.device") -> "AbstractContextManager[object]":
    """Return what forward passes run in."""
    if spec.precision == "float32":
        return nullcontext()
    half = torch.bfloat16 if spec.precision == "bfloat16" else torch.float16
    cast: AbstractContextManager[object] = torch.autocast(device.type, dtype=half)
    return cast


def prepare(spec: LearnerSpec, device: "torch.device", threads: int) -> None:
    """Set threads, and deterministic kernels: the same samples, threads and chip, the same sums.

    `threads`: most that the device's owner allows, 0 for all cores but one.
    """
    torch.set_num_threads(thread_count(spec.threads, threads))
    # cuBLAS reads this once; on a graphics chip a kernel without a deterministic form only warns.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # `use_deterministic_algorithms` does the same and imports a compiler of 70 MB for it.
    torch.set_deterministic_debug_mode("error" if device.type == "cpu" else "warn")
    torch.utils.deterministic.fill_uninitialized_memory = False  # nothing here reads any


def thread_count(wanted: int, most: int) -> int:
    """Return how many threads to take: as wanted, else all cores but one, as far as allowed."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    allowed = [cores or 1]
    if (named := os.environ.get("OMP_NUM_THREADS", "")).isdigit() and int(named) > 0:
        allowed.append(int(named))
    if most > 0:
        allowed.append(most)
    return min(*allowed, wanted or max(1, (cores or 1) - 1))


_EMPTY: Tensors = {}
Leaves = Mapping[str, "torch.Tensor"]


class TorchNetwork:
    """An mlp or a cnn, by weights that are given or `load`ed; nothing random happens in it."""

    def __init__(self, spec: ModelSpec, device: str = "cpu") -> None:
        self._spec, self._device = spec, device
        self.parameters: dict[str, torch.Tensor] = {}

    def load(self, tensors: Tensors) -> None:
        """Take copies."""
        for name, tensor in tensors.items():
            leaf = torch.from_numpy(np.array(tensor, np.float32)).to(self._device)
            self.parameters[name] = leaf.requires_grad_()

    def mean_loss(self, x: Inputs, y: Labels) -> "torch.Tensor":
        """Return the mean loss of a batch."""
        truth = torch.from_numpy(y.astype(np.int64)).to(self._device)
        return self.loss(self.parameters, shared(densed(x)).to(self._device), truth)

    def base_loss(self, x: Inputs, y: Labels) -> float:
        """Return the same as a number."""
        return float(self.mean_loss(x, y))

    def tensors(self) -> Arrays:
        """Return copies of the weights."""
        leaves = self.parameters.items()
        return {name: np.array(leaf.detach().cpu().numpy()) for name, leaf in leaves}

    def local(self) -> Tensors:
        """Nothing: all of it travels."""
        return {}

    def forward(self, weights: Weights, x: Inputs) -> Doubles:
        """Return the probability of each class, float64 [n, classes]."""
        with torch.no_grad():
            leaves = {name: shared(tensor) for name, tensor in weights.items()}
            logits = self._logits(leaves, shared(densed(x)))
            return np.asarray(torch.softmax(logits.double(), dim=1).numpy(), np.float64)

    def loss(self, leaves: Leaves, x: "torch.Tensor", truth: "torch.Tensor") -> "torch.Tensor":
        """Return the mean cross-entropy in nats, with the L2 penalty."""
        loss = torch.nn.functional.cross_entropy(self._logits(leaves, x), truth)
        if self._spec.l2:
            squares = [t.square().sum() for name, t in leaves.items() if name.endswith(".weight")]
            loss = loss + 0.5 * self._spec.l2 * sum(squares)
        return loss

    def _logits(self, leaves: Leaves, x: "torch.Tensor") -> "torch.Tensor":
        seen = x.to(next(iter(leaves.values())).dtype)
        if self._spec.kind == "cnn":
            rows, columns, channels = self._spec.picture
            seen = seen.reshape(len(x), channels, rows, columns)
            for index in range(1, len(self._spec.plan.convolutions) + 1):
                weight, bias = leaves[f"conv{index}.weight"], leaves[f"conv{index}.bias"]
                seen = torch.nn.functional.conv2d(seen, weight, bias)
                seen = torch.relu(torch.nn.functional.max_pool2d(seen, POOL))
            seen = seen.flatten(1)
        depth = 1 + len(self._spec.widths)
        for index in range(1, depth + 1):
            weight, bias = leaves[f"dense{index}.weight"], leaves[f"dense{index}.bias"]
            seen = torch.nn.functional.linear(seen, weight, bias)
            if index < depth:
                seen = torch.relu(seen)
        return seen


def shared(array: Floats | npt.NDArray[np.int64]) -> "torch.Tensor":
    """Return the array as a tensor on the same memory; a copy of one that may not be written."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


class TorchSteps:
    """Steps by autograd on the device, in the precision and with the optimiser of a recipe."""

    def __init__(
        self,
        model: Model,
        spec: LearnerSpec,
        terms: ClientTerms = NO_TERMS,
        *,
        once: Tensors = _EMPTY,
        threads: int = 0,
        seed: int = 0,
    ) -> None:
        device = device_of(spec)
        prepare(spec, device, threads)
        self._spec, self._mu, self._device = spec, terms.mu, device
        self._rate = spec.rate
        self._model: _Graph | TorchNetwork = (
            _Graph(TorchProgram(model.program, device=str(device)), once)
            if isinstance(model, Graph)
            else TorchNetwork(model.spec, str(device))
        )
        self._seed = seed
        self._autocast = autocast_of(spec, device)
        self._scaler = torch.amp.GradScaler(device.type) if spec.precision == "float16" else None
        self._optimizer: torch.optim.Optimizer | None = None
        self._anchors: dict[str, torch.Tensor] = {}
        self._correction: dict[str, torch.Tensor] = {}
        self._first_local = {name: np.array(t) for name, t in self._model.local().items()}

    def begin(self, base: Tensors, *, rate: float, correction: Tensors = _EMPTY) -> None:
        """Start a round."""
        self._rate, self._seed = rate, self._seed + 1
        torch.manual_seed(self._seed)  # of what drops out in this round
        self._model.load(base)
        self._optimizer = self._new_optimizer(self._model.parameters.values())
        self._correction = {n: shared(t).to(self._device) for n, t in correction.items()}
        if self._mu:
            leaves = self._model.parameters.items()
            self._anchors = {n: leaf.detach().clone() for n, leaf in leaves if n in base}

    def step(self, x: Inputs, y: Labels) -> float:
        """Move by one batch."""
        with self._autocast:
            loss = self._model.mean_loss(x, y)
        value = float(loss.detach())
        (self._scaler.scale(loss) if self._scaler else loss).backward()
        if self._scaler and self._optimizer:
            self._scaler.unscale_(self._optimizer)
        self._add_terms()
        self._move()
        for leaf in self._model.parameters.values():
            leaf.grad = None
        return value

    def loss(self, x: Inputs, y: Labels) -> float:
        """Return the mean loss of a batch."""
        with torch.no_grad(), self._autocast:
            return self._model.base_loss(x, y)

    def moved(self, base: Tensors) -> Arrays:
        """Return the difference to `base` of every tensor that travels, in place of a copy."""
        now = self._model.tensors()
        return {name: np.subtract(now[name], base[name], out=now[name]) for name in now}

    def local(self) -> Tensors:
        """Return the tensors that stay on the device."""
        return self._model.local()

    def restore(self, local: Tensors) -> None:
        """Take the tensors that stay here."""
        known = self._first_local.items()
        self._model.load({name: local.get(name, first) for name, first in known})

    # ------------------------------------------------------------------- a step

    def _new_optimizer(self, leaves: "Iterable[torch.Tensor]") -> "torch.optim.Optimizer | None":
        """Return torch's optimiser; None: `_move` does plain steps, rounded as numpy's are."""
        spec, all_ = self._spec, list(leaves)
        if spec.optimizer == "sgd" and not (spec.momentum or spec.weight_decay or self._scaler):
            return None
        if spec.optimizer == "sgd":
            common = {"lr": self._rate, "weight_decay": spec.weight_decay}
            return torch.optim.SGD(all_, momentum=spec.momentum, **common)
        kind = torch.optim.AdamW if spec.optimizer == "adamw" else torch.optim.Adam
        return kind(all_, lr=self._rate, weight_decay=spec.weight_decay)

    def _add_terms(self) -> None:
        """Add what the strategy asks to the gradients, then clip them."""
        with torch.no_grad():
            for name, leaf in self._model.parameters.items():
                if leaf.grad is None:
                    continue
                if (anchor := self._anchors.get(name)) is not None:
                    leaf.grad.add_(leaf.detach() - anchor, alpha=self._mu)
                if (shift := self._correction.get(name)) is not None:
                    leaf.grad.add_(shift)
        if self._spec.clip_norm:
            leaves = list(self._model.parameters.values())
            torch.nn.utils.clip_grad_norm_(leaves, self._spec.clip_norm)

    def _move(self) -> None:
        if self._scaler and self._optimizer:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        elif self._optimizer:
            self._optimizer.step()
        else:
            rate = float(np.float32(self._rate))
            with torch.no_grad():
                for leaf in self._model.parameters.values():
                    if leaf.grad is not None:
                        leaf.sub_(leaf.grad.mul_(rate))


class _Graph:
    """A program on a device."""

    def __init__(self, program: TorchProgram, once: Tensors) -> None:
        self.program = program
        program.load(once)
        self.parameters: Mapping[str, torch.Tensor] = program.parameters

    def load(self, tensors: Tensors) -> None:
        self.program.load(tensors)

    def mean_loss(self, x: Inputs, y: Labels) -> "torch.Tensor":
        return self.program.loss(self.program.inputs_of(densed(x), y))

    def base_loss(self, x: Inputs, y: Labels) -> float:
        return self.program.evaluate(self.program.inputs_of(densed(x), y))[1]

    def tensors(self) -> dict[str, npt.NDArray[np.float32]]:
        return self.program.tensors()

    def local(self) -> Tensors:
        return self.program.local()


class HeldInTorch(_Graph):
    """A graph for user code: a torch module; a batch is ``(inputs, target)``, on the device."""

    def __init__(
        self, model: Model, spec: LearnerSpec, *, once: Tensors = _EMPTY, threads: int = 0
    ) -> None:
        assert isinstance(model, Graph)
        device = device_of(spec)
        prepare(spec, device, threads)
        self.device = str(device)
        super().__init__(TorchProgram(model.program, device=self.device), once)
        fixed = {one.name for one in model.program.of_roles("frozen")}
        self._frozen = [t for name, t in self.program.buffers.items() if name in fixed]
        self._frozen += self.program.constants
        self._writes = [tensor._version for tensor in self._frozen]  # noqa: SLF001 - torch's count

    @property
    def view(self) -> "torch.nn.Module":
        """The module: ``model(*inputs)`` is its output, ``model.loss(batch)`` its own loss."""
        return self.program.module

    def batch(self, x: Inputs, y: Labels) -> Batch:
        """Return rows as the program's inputs."""
        return self.program.inputs_of(densed(x), y)

    def tensors(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return every tensor that travels; `FailedTrainingError`: a frozen one was written to."""
        if self._writes != [tensor._version for tensor in self._frozen]:  # noqa: SLF001 - the same
            raise failed_code("no error, but wrote to a tensor that is frozen")
        return super().tensors()
