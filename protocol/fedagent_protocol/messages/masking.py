"""Secure aggregation: keys and shares that an edge carries between the devices of a round.

docs/privacy.md has the flow. Every message is repeated until the next stage shows that it came.
"""

from typing import Annotated

from msgspec import Meta, Struct, field

from .fields import *

MAX_MEMBERS = 256
Key = Annotated[bytes, Meta(min_length=32, max_length=32)]
Certificate = Annotated[bytes, Meta(max_length=2048)]
SealedShare = Annotated[bytes, Meta(min_length=148, max_length=148)]
Share = Annotated[bytes, Meta(min_length=66, max_length=66)]
ShareCheck = Annotated[bytes, Meta(min_length=64, max_length=64)]
"""Hashes of one holder's shares: that of the seed, then that of the key."""
_Members = Meta(max_length=MAX_MEMBERS)


class MemberKeys(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """X25519 keys of one device for one round, signed by its identity."""

    identity: Key
    mask: Key
    seal: Key
    signature: Signature
    certificate: Certificate = b""  # DER, where devices are enrolled


# ---------------------------------------------------------------- agent -> edge


class MaskKeys(Message, frozen=True, kw_only=True, tag="mask-keys"):
    """Answer an order whose task wants updates masked."""

    keys: MemberKeys


class MaskShares(Message, frozen=True, kw_only=True, tag="mask-shares"):
    """Shares of the sender's secrets, sealed for each of the others; what its seed hashes to."""

    shares: Annotated[dict[Id, SealedShare], _Members]
    commitment: Key
    checks: Annotated[dict[Id, ShareCheck], _Members] = field(default_factory=dict)
    """By holder, the sender too."""


class MaskOpening(Message, frozen=True, kw_only=True, tag="mask-opening"):
    """Of each survivor the share of its seed, of who dropped out that of its key."""

    shares: Annotated[dict[Id, Share], _Members]


# ---------------------------------------------------------------- edge -> agent


class MaskRoster(Message, frozen=True, kw_only=True, tag="mask-roster"):
    """Everybody's keys: send shares for all of them."""

    members: Annotated[dict[Id, MemberKeys], _Members]


class MaskDelivery(Message, frozen=True, kw_only=True, tag="mask-delivery"):
    """The others' shares for the receiver: who sent some is in the masks."""

    shares: Annotated[dict[Id, SealedShare], _Members]
    checks: Annotated[dict[Id, ShareCheck], _Members] = field(default_factory=dict)
    """By sender."""


class MaskAsk(Message, frozen=True, kw_only=True, tag="mask-ask"):
    """The updates that are in the sum are these agents': help to unmask it."""

    survivors: Annotated[tuple[Id, ...], _Members]
    agreed: Annotated[dict[Id, Signature], _Members] = field(default_factory=dict)
    """`UpdateOffer.agreed` of each."""
