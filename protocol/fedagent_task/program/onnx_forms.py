"""Forms of operators in ONNX."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from .onnx_context import Context, NoOnnxFormError
from .spec import Argument, Ref

_TYPES = {
    "float64": TensorProto.DOUBLE,
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}
END = 2**62

Args = Sequence[Argument]
Form = Callable[[Context, Args], Any]


def _at(args: Args, place: int, default: Any = None) -> Any:
    given = args[place] if place < len(args) else None
    return default if given is None else given


def _pair(given: Any, count: int) -> list[int]:
    listed = list(given) if isinstance(given, list) else [given]
    return [int(one) for one in (listed * count if len(listed) == 1 else listed)]


def _same(c: Context, args: Args) -> Any:
    return c.names[args[0].v] if isinstance(args[0], Ref) else c.named(args[0])


def _unary(operator: str, **settings: Any) -> Form:
    return lambda c, args: c.add(operator, c.named(args[0]), **settings)


def _binary(operator: str) -> Form:
    def form(c: Context, args: Args) -> str:
        c.fixed(_at(args, 2, 1) == 1)
        other = args[1] if isinstance(args[1], Ref) and not c.is_number(args[1]) else None
        left = c.scalar(args[0], other if other is not None else args[0])
        return c.add(operator, left, c.scalar(args[1], args[0]))

    return form


def _compared(operator: str) -> Form:
    return lambda c, args: c.add(operator, c.named(args[0]), c.scalar(args[1], args[0]))


def _linear(c: Context, args: Args) -> str:
    weight = c.add("Transpose", c.named(args[1]), perm=[1, 0])
    out = c.add("MatMul", c.named(args[0]), weight)
    return c.add("Add", out, c.named(args[2])) if _at(args, 2) is not None else out


def _conv(c: Context, args: Args) -> str:
    count = len(c.shape(args[1])) - 2
    c.fixed(len(c.shape(args[0])) == count + 2)
    stride, padding = _pair(_at(args, 3, 1), count), _at(args, 4, 0)
    settings: dict[str, Any] = {"strides": stride, "dilations": _pair(_at(args, 5, 1), count)}
    if isinstance(padding, str):
        settings["auto_pad"] = {"same": "SAME_UPPER", "valid": "VALID"}[padding]
    else:
        settings["pads"] = _pair(padding, count) * 2
    given = [c.named(args[0]), c.named(args[1])]
    given += [c.named(args[2])] if _at(args, 2) is not None else []
    return c.add("Conv", *given, group=int(_at(args, 6, 1)), **settings)


def _column(c: Context, x: str, rank: int) -> str:
    """Make a row of one number per channel fit behind a batch."""
    return c.add("Reshape", x, c.const([1, -1, *[1] * (rank - 2)]))


def _batch_norm(c: Context, args: Args) -> str:
    c.fixed(not args[5], all(_at(args, place) is not None for place in range(1, 5)))
    x = [c.named(args[place]) for place in (0, 1, 2, 3, 4)]
    return c.add("BatchNormalization", *x, epsilon=float(args[7]))  # type: ignore[arg-type] # a number by its kind


def _group_norm(c: Context, args: Args) -> str:
    shape, groups = c.shape(args[0]), int(_at(args, 1))
    ones, zeros = (c.const([float(one)] * groups, "float32") for one in (1, 0))
    flat = c.add("Reshape", c.named(args[0]), c.const([0, groups, -1]))
    norm = c.add("InstanceNormalization", flat, ones, zeros, epsilon=float(_at(args, 4, 1e-5)))
    out = c.add("Reshape", norm, c.const([0, *shape[1:]]))
    for operator, place in (("Mul", 2), ("Add", 3)):
        if _at(args, place) is not None:
            out = c.add(operator, out, _column(c, c.named(args[place]), len(shape)))
    return out


def _layer_norm(c: Context, args: Args) -> str:
    count = len(_at(args, 1))
    shape = c.shape(args[0])[-count:]
    scale = c.const(np.ones(shape), "float32") if _at(args, 2) is None else c.named(args[2])
    given = [c.named(args[0]), scale]
    given += [c.named(args[3])] if _at(args, 3) is not None else []
    return c.add("LayerNormalization", *given, axis=-count, epsilon=float(_at(args, 4, 1e-5)))


def _max_pool(c: Context, args: Args) -> str:
    kernel = _pair(args[1], len(c.shape(args[0])) - 2)
    count = len(kernel)
    return c.add(
        "MaxPool",
        c.named(args[0]),
        kernel_shape=kernel,
        strides=_pair(_at(args, 2) or kernel, count),
        pads=_pair(_at(args, 3, 0), count) * 2,
        dilations=_pair(_at(args, 4, 1), count),
        ceil_mode=int(_at(args, 5, False)),
    )


def _avg_pool(c: Context, args: Args) -> str:
    kernel = _pair(args[1], len(c.shape(args[0])) - 2)
    count = len(kernel)
    c.fixed(_at(args, 6) is None)
    return c.add(
        "AveragePool",
        c.named(args[0]),
        kernel_shape=kernel,
        strides=_pair(_at(args, 2) or kernel, count),
        pads=_pair(_at(args, 3, 0), count) * 2,
        ceil_mode=int(_at(args, 4, False)),
        count_include_pad=int(_at(args, 5, True)),
    )


def _adaptive(c: Context, args: Args) -> str:
    shape = c.shape(args[0])
    sizes = shape[2:]
    wanted = _pair(args[1], len(sizes))
    if all(one == 1 for one in wanted):
        return c.add("GlobalAveragePool", c.named(args[0]))
    c.fixed(all(size % one == 0 for size, one in zip(sizes, wanted, strict=True)))
    kernel = [size // one for size, one in zip(sizes, wanted, strict=True)]
    return c.add("AveragePool", c.named(args[0]), kernel_shape=kernel, strides=kernel)


def _gelu(c: Context, args: Args) -> str:
    x = c.named(args[0])
    half = c.const(0.5, "float32")
    if _at(args, 1, "none") == "tanh":
        cube = c.add("Mul", c.add("Mul", x, x), x)
        inner = c.add("Add", x, c.add("Mul", cube, c.const(0.044715, "float32")))
        grown = c.add("Tanh", c.add("Mul", inner, c.const(np.sqrt(2 / np.pi), "float32")))
    else:
        grown = c.add("Erf", c.add("Mul", x, c.const(np.sqrt(0.5), "float32")))
    one = c.add("Add", grown, c.const(1.0, "float32"))
    return c.add("Mul", c.add("Mul", x, half), one)


def _silu(c: Context, args: Args) -> str:
    x = c.named(args[0])
    return c.add("Mul", x, c.add("Sigmoid", x))


def _clip(low: float | None, high: float | None) -> Form:
    def form(c: Context, args: Args) -> str:
        least, most = _at(args, 1, low), _at(args, 2, high)
        bounds = ["" if one is None else c.const(float(one), "float32") for one in (least, most)]
        return c.add("Clip", c.named(args[0]), *bounds)

    return form


def _softmax(operator: str) -> Form:
    return lambda c, args: c.add(operator, c.named(args[0]), axis=int(_at(args, 1)))


def _reshaped(c: Context, args: Args) -> str:
    shape = c.shape_of(c.value)
    if shape.count(-1) <= 1:
        return c.add("Reshape", c.named(args[0]), c.const(list(shape)))
    return c.add("Reshape", c.named(args[0]), c.sizes(args[1]))


def _permuted(c: Context, args: Args) -> str:
    rank = len(c.shape(args[0]))
    return c.add("Transpose", c.named(args[0]), perm=[one % rank for one in _at(args, 1)])


def _transposed(c: Context, args: Args) -> str:
    rank = len(c.shape(args[0]))
    one, other = (int(_at(args, place, default)) % rank for place, default in ((1, 0), (2, 1)))
    perm = list(range(rank))
    perm[one], perm[other] = perm[other], perm[one]
    return c.add("Transpose", c.named(args[0]), perm=perm)


def _reversed(c: Context, args: Args) -> str:
    rank = len(c.shape(args[0]))
    return c.add("Transpose", c.named(args[0]), perm=list(range(rank))[::-1])


def _reduced(operator: str) -> Form:
    def form(c: Context, args: Args) -> str:
        axes, keep = _at(args, 1), int(_at(args, 2, False))
        listed = list(axes) if isinstance(axes, list) else [axes]
        if axes is None or not listed:
            listed = list(range(len(c.shape(args[0]))))
        if operator == "ReduceSum":
            return c.add(operator, c.named(args[0]), c.const(listed), keepdims=keep)
        return c.add(operator, c.named(args[0]), axes=listed, keepdims=keep)

    return form


def _select(c: Context, args: Args) -> str:
    place = args[2]
    given = c.names[place.v] if isinstance(place, Ref) else c.const([place])
    taken = c.add("Gather", c.named(args[0]), given, axis=int(_at(args, 1)))
    return c.add("Squeeze", taken, c.const([int(_at(args, 1))]))


def _slice(c: Context, args: Args) -> str:
    dim, start = int(_at(args, 1, 0)), _at(args, 2, 0)
    end, step = _at(args, 3, END), _at(args, 4, 1)
    parts = [c.sizes([one]) for one in (start, end, dim, step)]
    return c.add("Slice", c.named(args[0]), *parts)


def _cat(c: Context, args: Args) -> str:
    parts = [c.named(one) for one in _at(args, 0)]
    return c.add("Concat", *parts, axis=int(_at(args, 1, 0)))


def _stack(c: Context, args: Args) -> str:
    axis = int(_at(args, 1, 0))
    parts = [c.add("Unsqueeze", c.named(one), c.const([axis])) for one in _at(args, 0)]
    return c.add("Concat", *parts, axis=axis)


def _unsqueeze(c: Context, args: Args) -> str:
    return c.add("Unsqueeze", c.named(args[0]), c.const([int(_at(args, 1))]))


def _expand(c: Context, args: Args) -> str:
    wanted = _at(args, 1)
    listed = wanted if isinstance(wanted, list) else [wanted]
    ready: list[Any] = [1 if one == -1 else one for one in listed]
    return c.add("Expand", c.named(args[0]), c.sizes(ready))


def _parts(c: Context, args: Args, sizes: list[int], axis: int) -> list[str]:
    return c.many("Split", c.named(args[0]), c.const(sizes), count=len(sizes), axis=axis)


def _split(c: Context, args: Args) -> list[str]:
    axis = int(_at(args, 2, 0))
    whole, size = c.shape(args[0])[axis], int(_at(args, 1))
    c.fixed(whole > 0)
    return _parts(c, args, [min(size, whole - at) for at in range(0, whole, size)], axis)


def _chunk(c: Context, args: Args) -> list[str]:
    axis = int(_at(args, 2, 0))
    whole = c.shape(args[0])[axis]
    size = -(-whole // int(_at(args, 1)))
    c.fixed(whole > 0)
    return _parts(c, args, [min(size, whole - at) for at in range(0, whole, size)], axis)


def _split_sizes(c: Context, args: Args) -> list[str]:
    return _parts(c, args, list(_at(args, 1)), int(_at(args, 2, 0)))


def _unbind(c: Context, args: Args) -> list[str]:
    axis = int(_at(args, 1, 0))
    whole = c.shape(args[0])[axis]
    c.fixed(whole > 0)
    parts = _parts(c, args, [1] * whole, axis)
    return [c.add("Squeeze", one, c.const([axis])) for one in parts]


def _embedding(c: Context, args: Args) -> str:
    return c.add("Gather", c.named(args[0]), c.named(args[1]), axis=0)


def _attention(c: Context, args: Args) -> str:
    query, key, value = (c.named(args[place]) for place in range(3))
    c.fixed(not _at(args, 4, 0.0), not _at(args, 5, False), not _at(args, 7, False))
    rank = len(c.shape(args[1]))
    scale = _at(args, 6) or 1 / np.sqrt(c.shape(args[0])[-1])
    turned = c.add("Transpose", key, perm=[*range(rank - 2), rank - 1, rank - 2])
    scores = c.add("MatMul", c.add("Mul", query, c.const(scale, "float32")), turned)
    if _at(args, 3) is not None:
        mask = c.named(args[3])
        scores = c.add("Add", scores, mask)
    return c.add("MatMul", c.add("Softmax", scores, axis=-1), value)


def _recurrent(kind: str) -> Form:
    """LSTM and GRU: torch's gates in ONNX's order, layer by layer."""
    order = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2)}[kind]

    def turned(c: Context, name: str) -> str:
        parts = c.many("Split", name, count=len(order), axis=0)
        return c.add("Unsqueeze", c.add("Concat", *(parts[i] for i in order), axis=0), c.const([0]))

    def form(c: Context, args: Args) -> list[str]:
        states = _at(args, 1) if kind == "LSTM" else [args[1]]
        flat, biased, layers = _at(args, 2), _at(args, 3), int(_at(args, 4))
        both, first = _at(args, 7), _at(args, 8)
        c.fixed(bool(biased), not both, len(flat) == 4 * layers)
        seen = c.named(args[0])
        if first:
            seen = c.add("Transpose", seen, perm=[1, 0, 2])
        starts = [c.many("Split", c.named(one), count=layers, axis=0) for one in states]
        ends: list[list[str]] = [[] for _ in states]
        for layer in range(layers):
            names = [c.named(one) for one in flat[4 * layer : 4 * layer + 4]]
            w, r, wb, rb = (turned(c, name) for name in names)
            extra = {"linear_before_reset": 1} if kind == "GRU" else {}
            out = c.many(
                kind,
                *(seen, w, r, c.add("Concat", wb, rb, axis=1), ""),
                *(one[layer] for one in starts),
                count=1 + len(states),
                hidden_size=c.shape(flat[4 * layer + 1])[1],
                **extra,
            )
            seen = c.add("Squeeze", out[0], c.const([1]))
            for place, end in enumerate(out[1:]):
                ends[place].append(end)
        if first:
            seen = c.add("Transpose", seen, perm=[1, 0, 2])
        return [seen, *(c.add("Concat", *one, axis=0) for one in ends)]

    return form


def _filled(value: float) -> Form:
    def form(c: Context, args: Args) -> str:
        dtype = _at(args, 1, "float32")
        return c.add(
            "ConstantOfShape",
            c.sizes(args[0]),
            value=numpy_helper.from_array(np.array([value], dtype)),
        )

    return form


def _size(c: Context, args: Args) -> str:
    axis = int(_at(args, 1))
    return c.add("Shape", c.named(args[0]), start=axis, **({"end": axis + 1} if axis != -1 else {}))


def _integers(operator: str) -> Form:
    return lambda c, args: c.add(operator, *(c.sizes([one]) for one in args))


def _cast(c: Context, args: Args) -> str:
    c.fixed(_at(args, 1) in _TYPES)
    return c.add("Cast", c.named(args[0]), to=_TYPES[_at(args, 1)])


def _where(c: Context, args: Args) -> str:
    like = next((one for one in args[1:] if isinstance(one, Ref)), args[0])
    return c.add("Where", c.named(args[0]), c.scalar(args[1], like), c.scalar(args[2], like))


def _masked(c: Context, args: Args) -> str:
    return c.add("Where", c.named(args[1]), c.scalar(args[2], args[0]), c.named(args[0]))


def _addmm(c: Context, args: Args) -> str:
    c.fixed(_at(args, 3, 1) == 1, _at(args, 4, 1) == 1)
    return c.add("Add", c.named(args[0]), c.add("MatMul", c.named(args[1]), c.named(args[2])))


def _part(c: Context, args: Args) -> str:
    given = args[0]
    if not isinstance(given, Ref) or not isinstance(args[1], int):
        raise NoOnnxFormError(c.at)
    return str(c.names[given.v][args[1]])


def _pow(c: Context, args: Args) -> str:
    return c.add("Pow", c.named(args[0]), c.scalar(args[1], args[0]))


FORMS: Mapping[str, Form] = {
    **dict.fromkeys(
        (
            *("dropout", "dropout_", "feature_dropout", "alpha_dropout", "contiguous", "clone"),
            *("detach", "detach_", "alias", "lift_fresh_copy"),
        ),
        _same,
    ),
    **dict.fromkeys(("view", "reshape", "flatten.using_ints", "unflatten.int"), _reshaped),
    **dict.fromkeys(("squeeze", "squeeze.dim", "squeeze.dims"), _reshaped),
    **dict.fromkeys(("transpose.int", "swapaxes"), _transposed),
    **dict.fromkeys(("t", "numpy_T"), _reversed),
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot"), _binary("MatMul")),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "conv1d.padding", "conv2d.padding"), _conv),
    **dict.fromkeys(("max_pool1d", "max_pool2d"), _max_pool),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d"), _avg_pool),
    **dict.fromkeys(("adaptive_avg_pool1d", "adaptive_avg_pool2d"), _adaptive),
    **dict.fromkeys(("relu", "relu_"), _unary("Relu")),
    **dict.fromkeys(("sigmoid", "sigmoid_"), _unary("Sigmoid")),
    **dict.fromkeys(("tanh", "tanh_"), _unary("Tanh")),
    **dict.fromkeys(("hardswish", "hardswish_"), _unary("HardSwish")),
    **dict.fromkeys(("hardsigmoid", "hardsigmoid_"), _unary("HardSigmoid", alpha=1 / 6)),
    **dict.fromkeys(("silu", "silu_"), _silu),
    **dict.fromkeys(("relu6", "relu6_"), _clip(0, 6)),
    **dict.fromkeys(("hardtanh", "hardtanh_"), _clip(-1, 1)),
    **dict.fromkeys(("clamp", "clamp_"), _clip(None, None)),
    **dict.fromkeys(("add.Tensor", "add_.Tensor"), _binary("Add")),
    **dict.fromkeys(("sub.Tensor", "sub_.Tensor"), _binary("Sub")),
    **dict.fromkeys(("mul.Tensor", "mul_.Tensor", "mul.Scalar"), _binary("Mul")),
    **dict.fromkeys(("div.Tensor", "div_.Tensor", "div.Scalar"), _binary("Div")),
    **dict.fromkeys(("pow.Tensor_Scalar", "pow.Tensor_Tensor"), _pow),
    **dict.fromkeys(("mean", "mean.dim"), _reduced("ReduceMean")),
    **dict.fromkeys(("sum", "sum.dim_IntList"), _reduced("ReduceSum")),
    **dict.fromkeys(("cat", "concat"), _cat),
    **dict.fromkeys(("eq.Tensor", "eq.Scalar"), _compared("Equal")),
    **dict.fromkeys(("gt.Tensor", "gt.Scalar"), _compared("Greater")),
    **dict.fromkeys(("ge.Tensor", "ge.Scalar"), _compared("GreaterOrEqual")),
    **dict.fromkeys(("lt.Tensor", "lt.Scalar"), _compared("Less")),
    **dict.fromkeys(("le.Tensor", "le.Scalar"), _compared("LessOrEqual")),
    **dict.fromkeys(("where.self", "where.ScalarOther", "where.ScalarSelf"), _where),
    **dict.fromkeys(("masked_fill.Scalar", "masked_fill_.Scalar"), _masked),
    "linear": _linear,
    "addmm": _addmm,
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "gelu": _gelu,
    "amax": _reduced("ReduceMax"),
    "amin": _reduced("ReduceMin"),
    "softmax.int": _softmax("Softmax"),
    "log_softmax.int": _softmax("LogSoftmax"),
    "permute": _permuted,
    "unsqueeze": _unsqueeze,
    "select.int": _select,
    "slice.Tensor": _slice,
    "stack": _stack,
    "expand": _expand,
    "split.Tensor": _split,
    "split_with_sizes": _split_sizes,
    "chunk": _chunk,
    "unbind.int": _unbind,
    "embedding": _embedding,
    "scaled_dot_product_attention": _attention,
    "lstm.input": _recurrent("LSTM"),
    "gru.input": _recurrent("GRU"),
    "list.get": _part,
    "zeros": _filled(0.0),
    "ones": _filled(1.0),
    "sym_size.int": _size,
    "int.mul": _integers("Mul"),
    "int.add": _integers("Add"),
    "int.sub": _integers("Sub"),
    "int.floordiv": _integers("Div"),
    "to.dtype": _cast,
    "exp": _unary("Exp"),
    "log": _unary("Log"),
    "sqrt": _unary("Sqrt"),
    "abs": _unary("Abs"),
    "neg": _unary("Neg"),
    "erf": _unary("Erf"),
    "sin": _unary("Sin"),
    "cos": _unary("Cos"),
    "floor": _unary("Floor"),
    "reciprocal": _unary("Reciprocal"),
    "softplus": _unary("Softplus"),
    "log_sigmoid": lambda c, args: c.add("Log", c.add("Sigmoid", c.named(args[0]))),
    "leaky_relu": lambda c, args: c.add(
        "LeakyRelu", c.named(args[0]), alpha=float(_at(args, 1, 0.01))
    ),
    "elu": lambda c, args: c.add("Elu", c.named(args[0]), alpha=float(_at(args, 1, 1.0))),
}
"""What draws an operator; several names of one where they give the same."""
