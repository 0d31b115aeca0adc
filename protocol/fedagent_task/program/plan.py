"""A graph made ready to run: each node's call, where its arguments come from, what ends with it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedagent_protocol.errors import safe_text
from fedagent_task.errors import TaskFormatError

from .meta import Watch, is_recurrent, stretched
from .operators import operators
from .spec import Argument, Graph, Node, Program, Ref
from .torch_operators import Function, function_of, takes_device

_FAILS = (
    RuntimeError,  # torch's own, NotImplementedError among them
    TypeError,
    ValueError,
    IndexError,
    AssertionError,
    ArithmeticError,
    AttributeError,
    MemoryError,
)
"""What an operator raises whose arguments do not fit each other."""


@dataclass(slots=True)
class _Step:
    name: str
    call: Function
    args: list[object]
    refs: tuple[tuple[int, int], ...]  # place in args, value
    lists: tuple[tuple[int, tuple[object, ...]], ...]  # place in args, items with references
    named: tuple[str, ...]
    fixed: dict[str, object]  # named arguments of every call
    stretch: bool  # on the meta device a long sequence is run in part

    def run(self, values: Sequence[object], watch: Watch | None = None) -> object:
        args = self.args.copy()
        for place, value in self.refs:
            args[place] = values[value]
        for place, items in self.lists:
            args[place] = [values[one.v] if type(one) is Ref else one for one in items]
        if self.stretch:
            return stretched(self.call, args, watch)
        if not self.named:
            return self.call(*args, **self.fixed)
        cut = len(self.args) - len(self.named)
        pairs = zip(self.named, args[cut:], strict=True)
        named = {name: value for name, value in pairs if value is not None}
        return self.call(*args[:cut], **named, **self.fixed)


class Plan:
    """One graph of a program on one device; values end where they are used last."""

    def __init__(self, program: Program, graph: Graph, name: str, device: str) -> None:
        self._graph, self._first = graph, program.first_node
        self._steps = [
            _step(node, f"{name} node {index} ({node.op})", device)
            for index, node in enumerate(graph.nodes)
        ]
        self._all = _with_ends(self._steps, self._first, {graph.output, graph.loss})
        self._for_loss = _with_ends(self._steps, self._first, {graph.loss})
        without = _without(graph.nodes, program.target_value, self._first)
        self._for_output = _with_ends(self._steps, self._first, {graph.output}, without)

    def run(
        self,
        values: list[object],
        *,
        output: bool = True,
        loss: bool = True,
        watch: Watch | None = None,
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        """Return output and loss; what is not wanted is not kept.

        Raises:
            TaskFormatError: It names the node whose arguments do not fit each other.
        """
        values = values + [None] * len(self._steps)
        order = self._all if output and loss else self._for_loss if loss else self._for_output
        for index, ends in order:
            step = self._steps[index]
            if watch is not None:
                watch.at = step.name
            try:
                values[self._first + index] = step.run(values, watch)
            except _FAILS as error:
                raise TaskFormatError(step.name, safe_text(error, limit=160)) from error
            for end in ends:
                values[end] = None
        return values[self._graph.output], values[self._graph.loss]


def _step(node: Node, name: str, device: str) -> _Step:
    operator = operators()[node.op]
    args: list[object] = []
    refs: list[tuple[int, int]] = []
    lists: list[tuple[int, tuple[object, ...]]] = []
    for place, (argument, kind) in enumerate(zip(node.args, operator.kinds, strict=False)):
        if isinstance(argument, Ref):
            refs.append((place, argument.v))
        elif isinstance(argument, list) and any(isinstance(one, Ref) for one in argument):
            lists.append((place, tuple(argument)))
        args.append(_given(argument, kind))
    cut = len(operator.kinds) - len(operator.named)
    return _Step(
        name=name,
        call=function_of(node.op),
        args=args,
        refs=tuple(refs),
        lists=tuple(lists),
        named=operator.named[: max(0, len(args) - cut)],
        stretch=device == "meta" and is_recurrent(node.op),
        fixed={"device": torch.device(device)} if takes_device(node.op) else {},
    )


def _given(argument: Argument, kind: str) -> object:
    if kind[0] == "d" and isinstance(argument, str):
        return getattr(torch, argument)
    return None if isinstance(argument, Ref) else argument


def _with_ends(
    steps: Sequence[_Step],
    first: int,
    wanted: set[int],
    without: frozenset[int] = frozenset(),
) -> list[tuple[int, tuple[int, ...]]]:
    """Return the steps to run, each with the values that nothing needs after it."""
    seen = set(wanted)
    order: list[tuple[int, tuple[int, ...]]] = []
    for index in reversed(range(len(steps))):
        if index in without:
            continue
        used = {value for _, value in steps[index].refs}
        used |= {one.v for _, items in steps[index].lists for one in items if isinstance(one, Ref)}
        used.add(first + index)
        ends = tuple(sorted(value for value in used - seen if value >= first))
        seen |= used
        order.append((index, ends))
    return order[::-1]


def _without(nodes: Sequence[Node], target: int, first: int) -> frozenset[int]:
    """Return the nodes that depend on the target."""
    tainted = {target}
    for index, node in enumerate(nodes):
        items = [
            one
            for argument in node.args
            for one in (argument if isinstance(argument, list) else [argument])
        ]
        if any(isinstance(one, Ref) and one.v in tainted for one in items):
            tainted.add(first + index)
    return frozenset(value - first for value in tainted if value >= first)
