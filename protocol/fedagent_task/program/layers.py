"""Layers that cannot be part of a program, told by their names before anything is exported."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import fx, nn
from torch.nn.utils.rnn import PackedSequence

from fedagent_task.errors import RecipeError

_MOMENTUM = """a mean over all batches depends on a counter's value; write before:
for one in model.modules():
    if getattr(one, 'momentum', 0) is None:
        one.momentum = 0.1"""
_SPECTRAL = """its power iteration runs without gradients; penalise the norm in the loss instead:
def loss(output, target):
    over = (model.get_submodule('{name}').weight.square().sum() - 1).relu()
    return nn.functional.cross_entropy(output, target) + 0.01 * over"""
_PACKED = """lengths are values, which shapes may not depend on; read the last step of each row:
out, _ = self.{name}(x)
last = (lengths - 1).view(-1, 1, 1).expand(-1, 1, out.shape[2])
return out.gather(1, last).squeeze(1)"""
_OUTPUT = """wrap it:
class Plain({kind}):
    def forward(self, *inputs):
        return super().forward(*inputs)[{key!r}]"""


def expect_layers(model: nn.Module) -> None:
    """Raise `RecipeError` for a layer of which it is known that it has no form in a program."""
    for name, module in model.named_modules():
        if any(nn.parameter.is_lazy(one) for one in module.parameters(recurse=False)):
            raise _refusal(name, module, "has no weights yet", "call the model once before")
        if getattr(module, "momentum", 0) is None and getattr(module, "track_running_stats", False):
            raise _refusal(name, module, "has momentum=None", _MOMENTUM)
        hooks = module._forward_pre_hooks.values()  # noqa: SLF001 - where its older form is
        if {"_SpectralNorm", "SpectralNorm"} & {type(one).__name__ for one in (module, *hooks)}:
            own = name.partition("parametrizations")[0].rstrip(".")
            raise _refusal(own, model.get_submodule(own), "has spectral_norm", _SPECTRAL)


@contextmanager
def watched(model: nn.Module) -> Iterator[None]:
    """Raise `RecipeError` for what goes through a model that has no form in a program."""
    names = {module: name for name, module in model.named_modules()}

    def before(module: nn.Module, given: tuple[object, ...]) -> None:
        if any(isinstance(one, PackedSequence) for one in given):
            raise _refusal(names[module], module, "takes a packed sequence", _PACKED)

    def after(module: nn.Module, _given: object, output: object) -> None:
        first = output[0] if isinstance(output, tuple | list) and output else output
        if not isinstance(first, torch.Tensor) or not first.dim():
            key = next(iter(first), "") if isinstance(first, Mapping) else "output"
            reason = f"gives no tensor of a batch, but a {type(first).__name__}"
            raise _refusal("", module, reason, _OUTPUT, key=key)

    hooks = [module.register_forward_pre_hook(before) for module in names]
    hooks.append(model.register_forward_hook(after))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def layer_of(node: fx.Node) -> str:
    """Return the name of the layer that a node of an export is of; ``forward`` if of none."""
    path, kind = next(reversed((node.meta.get("nn_module_stack") or {"": ("", "")}).values()))
    name = str(path).removeprefix("model").lstrip(".")
    return f"{name} ({str(kind).rpartition('.')[2]})" if name else "forward"


def _refusal(name: str, module: nn.Module, why: str, hint: str, **more: object) -> RecipeError:
    """Return the error; lines of code stand in one."""
    kind = type(module).__name__
    lines = hint.format(name=name, kind=kind, **more).splitlines()
    return RecipeError(f"{name or 'model'} ({kind})", why, " | ".join(lines))
