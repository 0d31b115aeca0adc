"""What a device keeps of its slots, for its owner alone; nothing of it leaves the device."""

from dataclasses import dataclass

from fedagent_node.effects import Write


@dataclass(frozen=True, slots=True)
class ArmStats:
    """What an agent keeps of its own arm over restarts.

    Attributes:
        mean: Mean opinion over the slots in which it trained; None before any opinion.
    """

    mean: float | None = None
    pulls: int = 0  # pi
    slot: int = 0  # the newest slot that is in them

    def after(self, slot: int, opinion: float | None, *, trained: bool) -> "ArmStats":
        """Return the stats with the opinion at the start of `slot`; twice is as once."""
        if slot <= self.slot or opinion is None:
            return self
        if self.mean is None:
            return ArmStats(opinion, 1, slot)
        if not trained:
            return ArmStats(self.mean, self.pulls, slot)
        mean = (self.mean * self.pulls + opinion) / (self.pulls + 1)
        return ArmStats(mean, self.pulls + 1, slot)


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
    neighbours: int = 0
    silent: int = 0
    sweeps: int = 0
    """Most belief messages to one neighbour, repeats left out; `exchanges`: of gossip."""
    exchanges: int = 0
    envelopes: int = 0  # sent to neighbours, cards included; `bytes`: as they were sealed
    bytes: int = 0
    seconds: float = 0.0  # to the decision; to the end of the slot where none was taken


class StoreSlot(Write, frozen=True):
    """Store durably what this device knows of a slot; it is for its owner alone."""

    incarnation: int  # the newest one; a later one must be larger, also after a restart
    arm: ArmStats  # of the record's run
    record: SlotRecord
