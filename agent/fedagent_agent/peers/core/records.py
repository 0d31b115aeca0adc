"""What a device keeps of its slots, for its owner alone; nothing of it leaves the device."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ArmStats:
    """What an agent keeps of its own arm over restarts.

    Attributes:
        mean: Mean opinion over the slots in which it trained; None before any opinion.
        pulls: Pi.
        slot: The newest slot that is in them.
    """

    mean: float | None = None
    pulls: int = 0
    slot: int = 0

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
    """One slot as this device has lived it.

    Attributes:
        run, round: Of the model that was evaluated.
        slot: t of the selection that follows from it.
        opinion: Its own, in [0, 1]; None: it had none.
        trained: Its update was in the model.
        mean, pulls: Its arm with this opinion.
        belief: Marginal of state 1, in [0, 1]; None until it was used.
        index: Psi; None without an opinion, or before it was named.
        chosen: Whether it volunteered; None: undecided.
        best: The K best as far as it knows, best first.
        agents: About how many took part.
        neighbours, silent: How many it had, and how many of them never answered.
        sweeps: Most belief messages to one neighbour, repeats left out.
        exchanges: The same of gossip.
        envelopes, bytes: What it sent to neighbours, without the messages around it.
        seconds: From the beginning to the decision; to the end where none was taken.
    """

    run: str
    round: int
    slot: int
    opinion: float | None
    trained: bool
    mean: float | None = None
    pulls: int = 0
    belief: float | None = None
    index: float | None = None
    chosen: bool | None = None
    best: tuple[str, ...] = ()
    agents: int = 0
    neighbours: int = 0
    silent: int = 0
    sweeps: int = 0
    exchanges: int = 0
    envelopes: int = 0
    bytes: int = 0
    seconds: float = 0.0
