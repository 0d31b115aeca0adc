"""What an edge must remember over a restart, in one file that is replaced atomically."""

from pathlib import Path

import msgspec

from fedagent_node.data_dir import write_private
from fedagent_protocol.messages import RoundReport

from .errors import StateError, disk_refused


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The file's content.

    Attributes:
        last_round: The last round that was reported; the journal has the open one.
        report: The report that was not receipted, as far as the file knows.
    """

    run: str = ""
    task: str = ""
    body: bytes = b""
    model: str = ""
    model_bytes: int = 0
    last_round: int = 0
    report: RoundReport | None = None


class StateFile:
    """Reads and replaces the state."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(State)

    def load(self) -> State | None:
        """Return the state, or None at the first start.

        Raises:
            StateError: The file is damaged.
        """
        try:
            return self._decoder.decode(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, ValueError, OSError) as error:
            hint = "delete the file to start with an empty edge"
            raise StateError(self._path, str(error)[:120], hint) from error

    def save(self, state: State) -> None:
        """Replace the state durably.

        Raises:
            StateError: The disk refused; the old state is still there.
        """
        try:
            write_private(self._path, self._encoder.encode(state))
        except OSError as error:
            raise disk_refused(self._path, error) from error
