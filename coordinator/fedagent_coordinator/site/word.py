"""The coordinator's word for devices, signed with the key that its certificate names."""

import asyncio
import functools
import time
from collections.abc import Callable
from contextlib import suppress

from fedagent_coordinator.core.effects import WordRenewed
from fedagent_node.data_dir import Identity
from fedagent_node.errors import CredentialsError
from fedagent_node.shell import Shell
from fedagent_node.site.credentials import load_credentials
from fedagent_protocol.messages import MAX_AGENTS, Digest, RunId, TaskClaim
from fedagent_protocol.signed import Assigning, Calling, Vouching, task_of_run

CLAIM_S = 7 * 86_400
"""How long a word on a task is good: that of an old run is of no use, and clocks may differ."""
WORD_S = 86_400.0
"""How often the word on the task is signed anew, while the last one is good for days."""
LOOK_S = 60.0
"""How often it is looked whether the word is to be signed anew."""
JUMP_S = 60.0
"""A clock that was moved by more was set: what was signed by the former time may have ended."""


class SiteWord(Vouching):
    """Signs for a site; `certificate` gives the coordinator's own as it is now, DER."""

    def __init__(
        self,
        identity: Identity,
        site: str,
        certificate: Callable[[], bytes],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._identity = identity
        self._site = site
        self._certificate = certificate
        self._clock = clock
        # An order is repeated until its report comes.
        self._signed = functools.lru_cache(maxsize=MAX_AGENTS)(identity.sign)

    def task(self, run: RunId, task: Digest) -> TaskClaim | None:
        """Return its word that a task is that of a run."""
        until_s = int(self._clock()) + CLAIM_S
        signature = self._identity.sign(task_of_run(self._site, run, task, until_s))
        return TaskClaim(certificate=self._certificate(), until_s=until_s, signature=signature)

    def sign(self, made: Assigning | Calling) -> bytes:
        """Return its signature that an agent is to train in a round, or of a call."""
        return self._signed(made.statement(self._site))


async def keep_word(shell: Shell) -> None:
    """Have the word on the task signed anew before the last one ends, also by a clock set since."""
    wall, steady = time.time(), time.monotonic()
    while True:
        await asyncio.sleep(LOOK_S)
        passed = time.monotonic() - steady
        if passed >= WORD_S or abs(time.time() - wall - passed) > JUMP_S:
            wall, steady = time.time(), time.monotonic()
            shell.receive(WordRenewed())


def own_certificate(shell: Shell) -> Callable[[], bytes] | None:
    """Return what gives the coordinator's certificate, also of a site that it does not serve now.

    On loopback its own broker is plain; its edges may have devices that ask for its word.
    """
    if shell.membership is not None:
        return shell.membership.own
    try:
        held = load_credentials(shell.directory) if shell.tls is None else None
    except CredentialsError:
        return None  # it is in use nowhere else
    if held is None:
        return None
    last = held.certificate.der

    def shown() -> bytes:
        nonlocal last
        with suppress(CredentialsError):  # half written, or damaged: the last one may still hold
            found = load_credentials(shell.directory)
            last = last if found is None else found.certificate.der
        return last

    return shown
