"""Which tensors travel beside a model's, and what is the model's own of them."""

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from fedagent_protocol.tensors import (
    Buffer,
    Manifest,
    TensorSpec,
    expect_manifest,
    locate,
    tensor_at,
)
from fedagent_task.recipe.client_terms import client_terms
from fedagent_task.recipe.spec import AggregationSpec

CONTROL = "control/"
"""Before a tensor's name: its control variate (SCAFFOLD), beside it in a model or an update."""
NOTHING = Manifest(())


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


def model_tensors(
    data: Buffer, model: Manifest, beside: Manifest = NOTHING
) -> dict[str, npt.NDArray[np.generic]]:
    """Return the model's tensors in a file, without what may be beside them: control variates too.

    Raises:
        ProtocolError: It holds anything else.
    """
    left_out = {one.name for one in beside.specs} - {one.name for one in model.specs}
    plain = tuple(
        item
        for item in locate(data)
        if not item.spec.name.startswith(CONTROL) and item.spec.name not in left_out
    )
    expect_manifest(plain, model)
    return {item.spec.name: tensor_at(data, item) for item in plain}


def with_controls(
    tensors: Mapping[str, npt.NDArray[np.generic]], whole: Manifest
) -> dict[str, npt.NDArray[np.generic]]:
    """Return a model as its run keeps it: control variates begin at 0."""
    zeros = {
        spec.name: np.zeros(spec.shape, spec.dtype)
        for spec in whole.specs
        if spec.name.startswith(CONTROL)
    }
    return {**tensors, **zeros}
