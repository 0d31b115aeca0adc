"""What a strategy asks of the training on a device. No numpy: the agent reads recipes too."""

from dataclasses import dataclass

from .spec import AggregationSpec


@dataclass(frozen=True, slots=True)
class ClientTerms:
    """FedProx adds mu·(w - w0) to the gradient, SCAFFOLD c - c_i; the others only ask figures."""

    mu: float = 0.0
    control: bool = False
    base_loss: bool = False
    local_steps: bool = False

    @property
    def more_than_updates(self) -> bool:
        """Whether devices send more than their updates."""
        return self.control or self.base_loss or self.local_steps


NO_TERMS = ClientTerms()


def client_terms(spec: AggregationSpec) -> ClientTerms:
    """Return what the named strategy asks; nothing of one that is not known here."""
    plain = 0.01 if spec.name == "fedprox" else 0.0
    mu = spec.params.get("mu", plain)
    mu = float(mu) if isinstance(mu, int | float) else plain
    known = {
        "fedprox": ClientTerms(mu=mu),
        "fednova": ClientTerms(mu=mu, local_steps=True),
        "scaffold": ClientTerms(control=True),
        "qfedavg": ClientTerms(base_loss=True),
    }
    return known.get(spec.name, NO_TERMS)
