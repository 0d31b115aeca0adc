"""What the devices of a demo knew and never sent, read from their own directories.

Only the owner of a device can read this; in a demo one person owns them all. Nothing of
it came over the wire.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from fedagent_agent.errors import PeerStoreError
from fedagent_agent.peers.store import KEPT_SLOTS, read_slots
from fedagent_cli.report.indices import Columns

_log = logging.getLogger(__name__)
SHOWN = ("opinion", "belief", "index")


def read_inside(folders: Mapping[str, Path], run: str) -> dict[str, Columns]:
    """Return opinions, beliefs and indices by round of the model.

    Args:
        folders: Data directories by agent id.
        run: Whose slots are wanted.
    """
    found: dict[str, Columns] = {name: {} for name in SHOWN}
    for agent, folder in folders.items():
        try:
            slots = read_slots(folder, run=run, last=KEPT_SLOTS)
        except PeerStoreError as error:
            _log.info("%s keeps no slots: %s", folder, error)
            continue
        for slot in slots:
            for name in SHOWN:
                value = getattr(slot, name)
                if value is not None:
                    found[name].setdefault(agent, []).append((slot.round, float(value)))
    return {name: columns for name, columns in found.items() if columns}
