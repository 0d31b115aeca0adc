"""Why a message of secure aggregation is refused."""

from fedagent_protocol.errors import ProtocolError


class MaskingError(ProtocolError):
    """Raised for keys, shares or answers that do not fit; nothing of them was used."""

    template = "{detail}"

    why: str
    detail: str

    @property
    def reason(self) -> str:  # type: ignore[override]  # of the instance: counters tell them apart
        """Word for counters."""
        return f"masking_{self.why}"
