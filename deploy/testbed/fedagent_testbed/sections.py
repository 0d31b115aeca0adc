"""What sections of a testbed recipe are made of, and those for what goes wrong in a world.

Explained key by key in `docs/testbed.md`.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0, lt=1e12)]
Count = Annotated[int, Meta(ge=1, le=10_000_000)]
Rounds = Annotated[int, Meta(ge=0, le=10_000_000)]
Factor = Annotated[float, Meta(ge=1e-3, le=1e3)]
Slower = Annotated[float, Meta(ge=1, le=1e6)]
Seconds = Annotated[float, Meta(ge=0, le=1e6)]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a recipe."""


class Attackers(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clients, fixed by the seed, whose updates do harm, or no work (docs/robust.md)."""

    share: Share = 0.0
    kind: Literal[
        "sign-flip",
        "times-100",
        "not-finite",
        "label-flip",
        "alie",
        "inner-product",
        "weight-lie",
        "free-rider",
        "noise",
        "copy",
    ] = "sign-flip"


class Late(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clients whose computation takes a deadline longer, so that they are never in time."""

    share: Share = 0.0
    price_factor: Factor = 1.0


class Dying(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clients of which nothing arrives after a share of the rounds."""

    share: Share = 0.0
    after: Share = 0.5
    heal: Rounds = 0
    """Rounds until they deliver again; 0 for never."""
    says: bool = True
    """Whether those that heal are seen to have started again."""


class Speeds(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clients whose true compute changes by a factor, while what they claim stays."""

    share: Share = 0.0
    after: Share = 0.5
    factor: tuple[Factor, Factor] = (0.25, 1.0)
    """Range, evenly over its logarithm; drawn per client."""


class Repriced(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clients whose price per unit is drawn anew after a share of the rounds."""

    share: Share = 0.0
    after: Share = 0.5


class Flips(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Two halves of the clients, one of which loses updates; every so many rounds they swap."""

    every: Rounds = 0
    loss: Share = 0.9


class BadEdge(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An edge, chosen by the seed, whose rounds fail, or whose links are slower."""

    fails: Share = 0.0
    slower: Slower = 1.0


class Correlated(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Orders that fail together: all of an edge, or of a group of clients that nobody is shown."""

    chance: Share = 0.0
    by: Literal["edge", "group"] = "edge"
    groups: Count = 5


class Cold(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds that everybody takes longer in the first rounds; halved in each round after them."""

    rounds: Rounds = 0
    extra_s: Seconds = 3.0


class Missing(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Features that are not reported: columns, and a share of all other values."""

    share: Share = 0.0
    columns: tuple[str, ...] = ()


class Chances(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The world ``chances``: what an update's success depends on instead of a link."""

    by: Literal["own", "compute"] = "own"
    own: tuple[Share, Share] = (0.1, 0.9)
    """With ``own``: range of the clients' chances; features tell nothing."""
    sure: Share = 0.0
    """Share of the clients that always deliver."""
    best: Share = 0.95
    """With ``compute``: the chance in the middle of the range of `work.compute`."""
    width: Annotated[float, Meta(ge=1e-3, le=10)] = 0.2
    """Width of the bump, as a share of that range."""
