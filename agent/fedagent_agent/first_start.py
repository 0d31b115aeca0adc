"""The identity without what it takes to make one: an agent stays small from its first start."""

import os
from pathlib import Path

from fedagent_node.identity import FILE, Identity, load_or_create


def identity_without_its_libraries(data_dir: Path) -> Identity:
    """Return the identity kept in a data directory, made by a child process if there is none.

    Call it before any thread is started: making a key loads a library of several
    megabytes, which the child takes with it.

    Raises:
        IdentityError: The file is there and damaged.
    """
    if not (data_dir / FILE).exists():
        child = os.fork()
        if child == 0:
            try:
                load_or_create(data_dir)
            finally:
                # Nothing of the parent may run here: no handlers, no buffers.
                os._exit(0)
        os.waitpid(child, 0)
    # Where the child failed, the same error comes here, in words.
    return load_or_create(data_dir)
