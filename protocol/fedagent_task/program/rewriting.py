"""What is changed in torch's graph before it is drawn as ours: the same numbers, said otherwise."""

import torch
from torch.export import ExportedProgram


def of_the_first_input(made: ExportedProgram) -> None:
    """Let the size of a batch be that of the first input, so that outputs need no target."""
    names = made.graph_signature.user_inputs
    by_name = {node.name: node for node in made.graph.nodes if node.op == "placeholder"}
    first = by_name[names[0]]
    for node in made.graph.nodes:
        of_batch = node.target is torch.ops.aten.sym_size.int and node.args[1] == 0
        if of_batch and getattr(node.args[0], "name", None) in names[1:]:
            node.args = (first, 0)


def without_idle_broadcasts(made: ExportedProgram) -> None:
    """Take out what a loss broadcasts to its own shape: the output would hang on the target."""
    broadcast = torch.ops.aten.broadcast_tensors.default
    for node in made.graph.nodes:
        source = node.args[0] if node.args else None
        if source is not None and getattr(source, "target", None) is broadcast:
            before = source.args[0][node.args[1]]
            if _shape(before) == _shape(node):
                node.replace_all_uses_with(before)


def _shape(node: torch.fx.Node) -> list[str]:
    return [str(size) for size in node.meta["val"].shape]


def with_plain_weight_norms(made: ExportedProgram) -> None:
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
