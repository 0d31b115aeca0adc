"""Which tensors of a module are averaged, which stay, and which are part of the program."""

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.export import ExportedProgram

from fedagent_task.errors import RecipeError

from .spec import LOSS, MAX_CONSTANT_BYTES, Constant, Role, Tensor

_NORMS = (
    nn.modules.batchnorm._NormBase,  # noqa: SLF001 - all batch and instance norms, no public name
    nn.GroupNorm,
    nn.LayerNorm,
    nn.LocalResponseNorm,
    *((nn.RMSNorm,) if hasattr(nn, "RMSNorm") else ()),
)
_WRITES = {"batch_norm": ((3, 4), 5), "instance_norm": ((3, 4), 5)}
"""Arguments that an operator writes to without its schema saying so, where another is true."""
_DTYPES = {torch.float32, torch.int64, torch.int32, torch.uint8, torch.bool}
_MAX_WHOLE = 2**24


@dataclass(frozen=True, slots=True)
class Kept:
    """Tensors and constants of a program, and where each name of the export is among them."""

    tensors: tuple[Tensor, ...]
    constants: tuple[Constant, ...]
    values: Mapping[str, npt.NDArray[np.float32]]
    tensor_of: Mapping[str, int]
    constant_of: Mapping[str, int]


@dataclass
class _Group:
    """One tensor with all of its names; `targets` are those that the export knows."""

    value: "torch.Tensor"
    names: list[str]
    targets: list[str]
    parameter: bool
    kept: bool = True  # in the module's ``state_dict``


def kept_tensors(whole: "nn.Module", made: Sequence[ExportedProgram], local: Sequence[str]) -> Kept:
    """Sort what a module holds, model and loss together; `RecipeError` names what cannot be."""
    groups = list(_groups(whole, made))
    changed = set().union(*(written(one) for one in made))
    norms = _norm_names(whole) if "norms" in local else set()
    patterns = [one for one in local if one != "norms"]
    names = [name for group in groups for name in group.names]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            some = ", ".join(names[:3])
            raise RecipeError("local", f"{pattern!r} fits no tensor", f"there are {some}, …")
    kept: list[tuple[Tensor, _Group]] = []
    inline: list[tuple[Constant, _Group]] = []
    room = MAX_CONSTANT_BYTES
    for group in groups:
        moves = bool(changed.intersection(group.targets))
        stays = any(name in norms for name in group.names) or any(
            fnmatch.fnmatchcase(name, pattern) for name in group.names for pattern in patterns
        )
        role = _role(group, moves=moves, stays=stays)
        _check(group)
        size = group.value.numel() * group.value.element_size()
        if role == "frozen" and not group.parameter and size <= room:
            room -= size
            inline.append((_constant(group), group))
            continue
        learnt = role in ("train", "local") and group.parameter and group.value.requires_grad
        name, *tied = sorted(group.names, key=group.names.index)
        dtype = str(group.value.dtype).removeprefix("torch.")
        shape = tuple(group.value.shape)
        kept.append((Tensor(name, dtype, shape, role, learnt, tuple(tied)), group))  # type: ignore[arg-type] # checked above
    kept.sort(key=lambda pair: pair[0].name)
    return Kept(
        tensors=tuple(tensor for tensor, _ in kept),
        constants=tuple(constant for constant, _ in inline),
        values={tensor.name: _array(tensor.name, group.value) for tensor, group in kept},
        tensor_of={name: i for i, (_, group) in enumerate(kept) for name in group.targets},
        constant_of={name: i for i, (_, group) in enumerate(inline) for name in group.targets},
    )


def written(made: ExportedProgram) -> set[str]:
    """Return the tensors that a graph writes to, by the export's name."""
    signature = made.graph_signature
    names = {spec.arg.name: str(spec.target) for spec in signature.input_specs if spec.target}
    found = set()
    for node in made.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None:
            continue
        places: Iterable[int] = (
            i
            for i, one in enumerate(schema.arguments)
            if one.alias_info and one.alias_info.is_write
        )
        base = schema.name.rpartition("::")[2]
        if base in _WRITES:
            indices, switch = _WRITES[base]
            places = indices if node.args[switch] else ()
        for place in places:
            name = getattr(node.args[place] if place < len(node.args) else None, "name", None)
            if name in names:
                found.add(names[name])
    return found


def _groups(whole: "nn.Module", made: Sequence[ExportedProgram]) -> Iterable[_Group]:
    by_id: dict[int, _Group] = {}
    known = set(whole.state_dict(keep_vars=True))
    for parameter, pairs in (
        (True, whole.named_parameters(remove_duplicate=False)),
        (False, whole.named_buffers(remove_duplicate=False)),
    ):
        for name, value in pairs:
            if parameter or name in known:
                group = by_id.setdefault(id(value), _Group(value, [], [], parameter))
                group.names.append(own_name(name))
                group.targets.append(name)
    yield from by_id.values()
    seen = {name for group in by_id.values() for name in group.targets}
    for one in made:
        for name, value in one.constants.items():
            if name not in seen and isinstance(value, torch.Tensor):
                seen.add(name)
                yield _Group(value, [own_name(name)], [name], parameter=False, kept=False)


def own_name(name: str) -> str:
    """Return the author's own name of a tensor; those of the loss begin with `LOSS`."""
    return re.sub(r"^model\.|^loss\.", lambda of: LOSS if of[0] == "loss." else "", name)


def _role(group: _Group, *, moves: bool, stays: bool) -> Role:
    if stays:
        return "local"
    if group.parameter:
        return "train" if group.value.requires_grad else "frozen"
    if not moves:
        return "frozen"
    return "mean" if group.value.is_floating_point() else "latest"


def _check(group: _Group) -> None:
    name, value = group.names[0], group.value
    if not re.fullmatch(r"(loss/)?[A-Za-z0-9_.\-]{1,200}", name):
        raise RecipeError(name, "is no plain name", "use letters, digits, _, - and .")
    if value.dtype not in _DTYPES or (group.parameter and value.dtype != torch.float32):
        kind = str(value.dtype).removeprefix("torch.")
        hint = "call model.float() before" if value.is_floating_point() else "use int64"
        raise RecipeError(name, f"is of {kind}", hint)


def _norm_names(whole: "nn.Module") -> set[str]:
    found = set()
    for path, module in whole.named_modules():
        if isinstance(module, _NORMS):
            for name in (*dict(module.named_parameters()), *dict(module.named_buffers())):
                found.add(own_name(f"{path}.{name}" if path else name))
    return found


def _constant(group: _Group) -> Constant:
    value = group.value
    array = value.detach().cpu().contiguous().numpy()
    little = array.astype(array.dtype.newbyteorder("<"))
    dtype = str(value.dtype).removeprefix("torch.")
    names = tuple(group.names) if group.kept else ()
    return Constant(dtype, tuple(value.shape), little.tobytes(), names)  # type: ignore[arg-type] # checked before


def _array(name: str, value: "torch.Tensor") -> npt.NDArray[np.float32]:
    array = value.detach().cpu().numpy()
    if array.dtype.kind in "iu" and array.size and np.abs(array).max() > _MAX_WHOLE:
        hint = "keep it below, or as a small buffer that nothing writes to"
        raise RecipeError(name, f"holds integers over {_MAX_WHOLE}", hint)
    return np.array(array, np.float32)
