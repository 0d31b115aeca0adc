"""What a device keeps of its slots, for its owner alone; nothing of it leaves the device."""

from dataclasses import dataclass, replace

from fedagent_node.effects import Write

TRIES = 2
"""Slots in which an agent that never trained comes first; later ones it has to win."""


@dataclass(frozen=True, slots=True)
class ArmStats:
    """What an agent keeps of its own arm over restarts.

    Attributes:
        mean: Mean opinion over the slots in which it trained, its first opinion before that; None
            before any.
        chosen: Slots in which it was among the K best; `chosen_in` is the newest of them.
    """

    mean: float | None = None
    pulls: int = 0  # pi
    slot: int = 0  # the newest slot that is in them
    chosen: int = 0
    chosen_in: int = 0

    @property
    def comes_first(self) -> bool:
        """Whether it has never trained, and was not yet chosen in vain too often."""
        return not self.pulls and self.chosen < TRIES

    def decided(self, slot: int, *, chosen: bool) -> "ArmStats":
        """Return the stats after a decision; twice is as once."""
        if not chosen or slot <= self.chosen_in:
            return self
        return replace(self, chosen=self.chosen + 1, chosen_in=slot)

    def after(
        self, slot: int, opinion: float | None, *, trained: bool, cold_start: bool = True
    ) -> "ArmStats":
        """Return the stats with the opinion at the start of `slot`; twice is as once.

        Without a cold start the first opinion is a pull, whoever trained.
        """
        if slot <= self.slot or opinion is None:
            return self
        if not (trained if self.mean is not None or cold_start else True):
            first = opinion if self.mean is None else self.mean
            return replace(self, mean=first, slot=slot)
        mean = ((self.mean or 0.0) * self.pulls + opinion) / (self.pulls + 1)
        return replace(self, mean=mean, pulls=self.pulls + 1, slot=slot)


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """One slot as this device has lived it."""

    run: str
    round: int  # of the model that was evaluated
    slot: int  # t of the selection that follows from it
    opinion: float | None  # in [0, 1]; None: it had none
    trained: bool
    mean: float | None = None
    pulls: int = 0
    belief: float | None = None  # marginal of state 1, in [0, 1]; None until it was used
    index: float | None = None  # psi; None without an opinion, or before it was named
    chosen: bool | None = None  # whether it volunteered; None: undecided
    best: tuple[str, ...] = ()
    agents: int = 0


class StoreSlot(Write, frozen=True):
    """Store durably what this device knows of a slot; it is for its owner alone."""

    incarnation: int  # the newest one; a later one must be larger, also after a restart
    arm: ArmStats  # of the record's run
    record: SlotRecord
