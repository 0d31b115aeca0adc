"""Which tensors a model's file holds under a strategy: those of the model, and what rides along."""

from collections.abc import Collection

from fedagent_protocol.tensors import Manifest, TensorSpec

from .client_terms import CONTROL, client_terms
from .spec import AggregationSpec


def travelling(model: Manifest, spec: AggregationSpec, trained: Collection[str] = ()) -> Manifest:
    """Return the tensors of a model file, and of an update, under a strategy.

    `trained`: names of what gradients move, each of which has a control variate; empty for all.
    """
    if not client_terms(spec).control:
        return model
    controls = (
        TensorSpec(CONTROL + one.name, one.dtype, one.shape)
        for one in model.specs
        if not trained or one.name in trained
    )
    return Manifest(tuple(sorted((*model.specs, *controls))))
