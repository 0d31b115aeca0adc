"""What the core is told, and what it must remember."""

from dataclasses import dataclass

from msgspec import Struct

from fedagent_protocol.messages import CHUNK_BYTES, RoundReport


@dataclass(frozen=True, slots=True)
class EdgeSettings:
    """What the core is told of the configuration.

    Attributes:
        rent_micro: What it asks for aggregating one round of a placed run.
    """

    edge: str
    epoch: str
    name: str = ""
    software: str = ""
    broker: str = ""
    chunk_bytes: int = CHUNK_BYTES
    credit_bytes: int = 4 << 20
    need_wait_s: float = 0.05
    max_model_bytes: int = 512 << 20
    rent_micro: int = 0


class Memory(Struct, kw_only=True):
    """What survives a restart.

    Attributes:
        last_round: The last round that was ordered.
        report: The report that was not receipted, as far as the disk knows.
    """

    run: str = ""
    task: str = ""
    body: bytes = b""
    model: str = ""
    model_bytes: int = 0
    last_round: int = 0
    report: RoundReport | None = None

    def adopt(self, run: str, task: str, body: bytes) -> None:
        """Begin with another run, or with this one's task as it is from now on."""
        if run != self.run:
            self.model, self.model_bytes = "", 0
            self.last_round, self.report = 0, None
        self.run, self.task, self.body = run, task, body
