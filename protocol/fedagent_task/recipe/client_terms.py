"""What a strategy asks of the training on a device. No numpy: the agent reads recipes too."""

from dataclasses import dataclass

from .spec import AggregationSpec

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
