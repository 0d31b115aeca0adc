"""What a strategy asks of the training on a device, and which tensors travel beside a model's."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

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
from fedagent_task.recipe.spec import AggregationSpec

CONTROL = "control/"
"""Before a tensor's name: its control variate (SCAFFOLD), beside it in a model or an update."""
DEFAULT_MU = 0.01
"""FedProx's mu where the recipe names none."""


@dataclass(frozen=True, slots=True)
class ClientTerms:
    """FedProx adds mu·(w - w0) to the gradient, SCAFFOLD c - c_i; the others only ask figures."""

    mu: float = 0.0
    control: bool = False
    base_loss: bool = False
    local_steps: bool = False


NO_TERMS = ClientTerms()


def client_terms(spec: AggregationSpec) -> ClientTerms:
    """Return what the named strategy asks; nothing of one that is not known here."""
    if spec.name == "fedprox":
        return ClientTerms(mu=_mu(spec, DEFAULT_MU))
    if spec.name == "fednova":
        return ClientTerms(mu=_mu(spec, 0.0), local_steps=True)
    if spec.name == "scaffold":
        return ClientTerms(control=True)
    if spec.name == "qfedavg":
        return ClientTerms(base_loss=True)
    return NO_TERMS


def _mu(spec: AggregationSpec, default: float) -> float:
    mu = spec.params.get("mu", default)
    return float(mu) if isinstance(mu, int | float) else default


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


def model_tensors(data: Buffer, model: Manifest) -> dict[str, npt.NDArray[np.generic]]:
    """Return the model's tensors in a file, without control variates that are beside them.

    Raises:
        ManifestError, OversizeError: It holds anything else.
    """
    plain = tuple(item for item in locate(data) if not item.spec.name.startswith(CONTROL))
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
