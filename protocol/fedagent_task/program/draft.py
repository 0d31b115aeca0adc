"""One graph of torch.export drawn as ours: names of operators, numbers of values, plain data."""

import operator as python
from collections.abc import Callable, Mapping

import torch
from torch import fx
from torch.export import ExportedProgram

from fedagent_task.errors import RecipeError

from .layers import layer_of
from .operators import MAX_INTEGER, Operator, operators
from .spec import Argument, Graph, Link, Node, Ref

_PYTHON: Mapping[Callable[..., object], str] = {
    python.add: "add",
    python.sub: "sub",
    python.mul: "mul",
    python.floordiv: "floordiv",
    python.mod: "mod",
    python.neg: "neg",
    python.truediv: "truediv",
    python.pow: "pow",
    torch.sym_max: "max",
    torch.sym_min: "min",
    torch.sym_float: "of",
}
_DROPPED = frozenset(
    (
        "_assert_scalar",
        "_assert_tensor_metadata",
        "_assert_async",
        "sym_constrain_range",
        "sym_constrain_range_for_size",
    )
)
"""What export adds to check its own assumptions; nothing is computed by them."""
_VALUES = "choose by torch.where or masks: a shape may not depend on values"
_HINTS = {
    "nonzero": _VALUES,
    "masked_select": _VALUES,
    "unique": _VALUES,
    "_local_scalar_dense": _VALUES,
    "item": _VALUES,
    "sym_numel": "use nn.Embedding and mean(1) instead of nn.EmbeddingBag, and x.shape instead "
    "of numel()",
    "wrap_with_set_grad_enabled": "remove torch.no_grad() from forward: use detach() where it "
    "is needed",
    "wrap_with_autocast": "remove autocast from forward: the recipe sets learner.precision",
    "cond": "compute both sides and choose by torch.where",
    "while_loop": "loop over range() of a fixed number",
    "scan": "loop over range() of a fixed number",
}
_THROUGH = frozenset(("squeeze.dim", "squeeze", "view", "reshape", "flatten.using_ints"))
_LINKS: Mapping[str, Link] = {
    "cross_entropy_loss": "softmax",
    "nll_loss_nd": "exp",
    "binary_cross_entropy_with_logits": "sigmoid",
}


def rewritten(made: ExportedProgram) -> "fx.Graph":
    """Return torch's graph with the same numbers said otherwise, ready to be drawn."""
    _of_the_first_input(made)
    _without_idle_broadcasts(made)
    _with_plain_weight_norms(made)
    return made.graph


def _of_the_first_input(made: ExportedProgram) -> None:
    """Let the size of a batch be that of the first input, so that outputs need no target."""
    names = made.graph_signature.user_inputs
    by_name = {node.name: node for node in made.graph.nodes if node.op == "placeholder"}
    first = by_name[names[0]]
    for node in made.graph.nodes:
        of_batch = node.target is torch.ops.aten.sym_size.int and node.args[1] == 0
        if of_batch and getattr(node.args[0], "name", None) in names[1:]:
            node.args = (first, 0)


def _without_idle_broadcasts(made: ExportedProgram) -> None:
    """Take out what a loss broadcasts to its own shape: the output would hang on the target."""
    broadcast = torch.ops.aten.broadcast_tensors.default
    for node in made.graph.nodes:
        source = node.args[0] if node.args else None
        if source is not None and getattr(source, "target", None) is broadcast:
            before = source.args[0][node.args[1]]
            if _shape(before) == _shape(node):
                node.replace_all_uses_with(before)


def _shape(node: fx.Node) -> list[str]:
    return [str(size) for size in node.meta["val"].shape]


def _with_plain_weight_norms(made: ExportedProgram) -> None:
    """Write g v / |v| for torch's own operator, whose kernel takes g of any shape at its word."""
    aten = torch.ops.aten
    for node in list(made.graph.nodes):
        if node.target is not aten._weight_norm.default:  # noqa: SLF001 - it has no public name
            continue
        v, g, kept = (*node.args, 0)[:3]
        others = [place for place in range(len(v.meta["val"].shape)) if place != kept]
        with made.graph.inserting_before(node):
            length = made.graph.call_function(aten.norm.ScalarOpt_dim, (v, 2, others, True))
            factor = made.graph.call_function(aten.div.Tensor, (g, length))
            weight = made.graph.call_function(aten.mul.Tensor, (v, factor))
        weight.meta = dict(node.meta)
        node.replace_all_uses_with(weight)
        made.graph.erase_node(node)


class Draft:
    """Nodes as they come; `values` are those of the placeholders, `given` of inputs and target."""

    def __init__(
        self, graph: "fx.Graph", values: Mapping[str, int], given: range, first: int
    ) -> None:
        self._values = dict(values)
        self._given, self._first = given, first
        self._nodes: list[Node] = []
        self._needed = _needed(graph)
        self._graph = graph

    def drawn(self) -> Graph:
        """Return the graph; `RecipeError` names what has no form in ours."""
        for node in self._graph.nodes:
            if node.op == "call_function" and node in self._needed:
                self._add(node)
            elif node.op == "output":
                output, loss = node.args[0]
                return Graph(tuple(self._nodes), self._value(output), self._value(loss))
            elif node.op == "get_attr":
                continue
        raise RecipeError("forward", "returns nothing", "return a tensor")

    def _add(self, node: "fx.Node") -> None:
        name, args = self._call(node)
        known = operators().get(name)
        if known is None:
            hint = _HINTS.get(name, "write this part of forward with other operators")
            raise RecipeError(layer_of(node), f"the operator {name} is not supported", hint)
        schema = getattr(node.target, "_schema", None)
        given = args if schema is None else _bound(schema, known, args, node.kwargs)
        ready = tuple(
            self._argument(one, kind) for one, kind in zip(given, known.kinds, strict=False)
        )
        if known.in_place and ready and isinstance(ready[0], Ref) and ready[0].v in self._given:
            # A batch is the caller's: what is written to is a copy, from here on.
            self._nodes.append(Node("clone", (ready[0],)))
            copied = self._first + len(self._nodes) - 1
            names = [key for key, value in self._values.items() if value == ready[0].v]
            self._values |= dict.fromkeys(names, copied)
            ready = (Ref(copied), *ready[1:])
        self._nodes.append(Node(name, ready))
        self._values[node.name] = self._first + len(self._nodes) - 1

    def _call(self, node: "fx.Node") -> tuple[str, tuple[object, ...]]:
        if isinstance(node.target, torch._ops.OpOverload):  # noqa: SLF001 - it has no public name
            return _rewritten(_name(node.target), node.args)
        if node.target is python.getitem:
            return "list.get", node.args
        if node.target in _PYTHON:
            word = _PYTHON[node.target]
            whole = isinstance(node.meta.get("val"), int | torch.SymInt)
            return f"{'int' if whole else 'float'}.{word}", node.args
        return str(getattr(node.target, "__name__", node.target)), node.args

    def _argument(self, given: object, kind: str) -> Argument:
        if isinstance(given, fx.Node):
            return Ref(self._value(given))
        if kind == "_":
            return None
        if isinstance(given, torch.dtype):
            return str(given).removeprefix("torch.")
        if isinstance(given, list | tuple):
            inner = {"N": "T?"}.get(kind[0], kind[0])
            return [self._argument(one, inner) for one in given]  # type: ignore[misc] # lists do not nest in aten
        if isinstance(given, int) and not isinstance(given, bool) and given > MAX_INTEGER:
            return None  # a slice to the end
        if given is None or isinstance(given, bool | int | float | str):
            return given
        raise RecipeError("forward", f"passes {given!r} to an operator", "use plain numbers")

    def _value(self, node: object) -> int:
        if not isinstance(node, fx.Node) or node.name not in self._values:
            raise RecipeError("forward", f"returns {node}, not a tensor", "return a tensor")
        return self._values[node.name]


def link_of(graph: Graph, first: int) -> Link:
    """Return what makes probabilities of the output, as far as the loss tells."""

    def back(value: int) -> int:
        while value >= first and (node := graph.nodes[value - first]).op in _THROUGH:
            (given,) = (one for one in node.args[:1] if isinstance(one, Ref))
            value = given.v
        return value

    for node in graph.nodes:
        given = node.args[0] if node.args else None
        if node.op in _LINKS and isinstance(given, Ref) and back(given.v) == back(graph.output):
            return _LINKS[node.op]
    return ""


def _name(target: "torch._ops.OpOverload") -> str:
    namespace, _, base = target._schema.name.partition("::")  # noqa: SLF001 - it has no public name
    if namespace != "aten":
        return f"{namespace}.{base}"
    overload = target._overloadname  # noqa: SLF001 - the same
    return base if overload == "default" else f"{base}.{overload}"


def _rewritten(name: str, args: tuple[object, ...]) -> tuple[str, tuple[object, ...]]:
    """Return the same with the few operators that name a device or a layout in their place."""
    if name in ("to.device", "to.dtype_layout", "_to_copy"):
        kinds = [one for one in args[1:] if isinstance(one, torch.dtype)]
        return ("to.dtype", (args[0], kinds[0])) if kinds else ("alias", (args[0],))
    return name, args


def _bound(
    schema: "torch._C.FunctionSchema",
    known: Operator,
    args: tuple[object, ...],
    named: Mapping[str, object],
) -> list[object]:
    """Return the arguments in our order, what the schema says by default filled in."""
    places = [one for one in schema.arguments if not one.kwarg_only]
    cut = len(known.kinds) - len(known.named)
    given: list[object] = []
    plain: list[object] = []
    for index, one in enumerate(places[:cut]):
        default = one.default_value if one.has_default_value() else None
        given.append(args[index] if index < len(args) else named.get(one.name, default))
        plain.append(default)
    for name in known.named:
        given.append(named.get(name))
        plain.append(None)
    while given and len(given) > 1 and _same(given[-1], plain[-1]):
        given.pop()
        plain.pop()
    return given


def _same(one: object, other: object) -> bool:
    return one is None if other is None else type(one) is type(other) and one == other


def _needed(graph: "fx.Graph") -> "set[fx.Node]":
    """Return all nodes but checks, and numbers or parts that only checks or nothing looks at."""
    needed: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op != "call_function":
            continue
        overload = isinstance(node.target, torch._ops.OpOverload)  # noqa: SLF001 - it has no public name
        name = _name(node.target) if overload else ""
        if name.partition(".")[0] in _DROPPED:
            continue
        idle = not overload or name in ("sym_size.int", "broadcast_tensors")
        if not idle or any(user in needed or user.op == "output" for user in node.users):
            needed.add(node)
    return needed
