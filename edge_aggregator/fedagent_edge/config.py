"""The edge's settings, read once."""

from typing import Annotated, ClassVar, Self

from msgspec import Meta

from fedagent_node.address import BrokerAddress
from fedagent_node.settings import LINK, BrokerConfig, JoinText, Name, SettingError
from fedagent_protocol.messages import CHUNK_BYTES, MAX_CHUNK_BYTES
from fedagent_protocol.option import Option

_MICRO = 1e-6
_MAX_KM = 1e8


class EdgeConfig(BrokerConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one edge aggregator."""

    prefix: ClassVar[str] = "FEDAGENT_EDGE_"
    name: Name = ""
    coordinator: Annotated[
        str | None,
        Option(
            "Address of the coordinator, where zeroconf does not reach.",
            metavar="HOST:PORT",
            panel=LINK,
        ),
    ] = None
    chunk_bytes: Annotated[
        int, Meta(ge=1024, le=MAX_CHUNK_BYTES), Option("Size of a model chunk.")
    ] = CHUNK_BYTES
    credit_bytes: Annotated[
        int,
        Meta(ge=1024, le=1 << 30),
        Option("Most upload bytes in flight at once, for all agents together."),
    ] = 4 << 20
    rent: Annotated[
        float,
        Meta(ge=0, le=1e9),
        Option("Credits that this edge asks for aggregating one round of a placed run."),
    ] = 0.0

    position: Annotated[
        tuple[float, float] | None,
        Option(
            "Position of this edge in kilometres; devices with a position compute the distance.",
            metavar="X_KM,Y_KM",
            example="0.5,0.5",
            panel=LINK,
        ),
    ] = None
    """In a frame that all devices of a site share."""
    join: JoinText = ""

    def checked(self) -> Self:
        """Return the settings, with rent and the coordinator's address looked over."""
        checked = super().checked()
        self.check_invitation("edge")
        if 0 < self.rent < _MICRO:
            hint = "write 0, or 0.000001 or more"
            raise SettingError("rent", "is less than a micro-credit", hint)
        if self.position is not None and not all(abs(v) <= _MAX_KM for v in self.position):
            raise SettingError("position", "is not a place", f"two numbers within ±{_MAX_KM:g} km")
        self.typed_coordinator()
        return checked

    def typed_coordinator(self) -> BrokerAddress | None:
        """Return the address of the coordinator's broker where it is typed; see `shared`."""
        if self.coordinator is None:
            return None
        return self.address("coordinator", self.coordinator)
