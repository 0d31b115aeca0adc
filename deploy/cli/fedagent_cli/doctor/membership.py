"""The doctor's look at sites: which roles of this machine belong to one, and does it know them?"""

import asyncio
import time
from pathlib import Path

from fedagent_node.data_dir import IDENTITY_FILE, load_or_create
from fedagent_node.errors import JoinError, JoinUnreachableError, LinkError
from fedagent_node.site import FOLDER
from fedagent_node.site.credentials import load_credentials
from fedagent_node.site.enrolling import ask_again, read_waits

from .checks import Finding, Level, broken, fine, odd

MAX_ROLES = 8
"""Data directories that are looked at."""
ASK_S = 10.0
LATE_S = 86_400.0
"""How long a renewal may be due before somebody hears of it."""


def membership(home: Path, *more: Path) -> Finding:
    """Say what each role of this machine is to its site, by its certificate and the join service.

    `more` are data directories outside of `home`.
    """
    named = [path.absolute() for path in more if (path / FOLDER).exists()]
    found_here = sorted(path.parent.absolute() for path in home.glob(f"*/{FOLDER}"))
    folders = list(dict.fromkeys([*named, *found_here]))[:MAX_ROLES]
    found = [_state(folder) for folder in folders]
    for level in (Level.FAIL, Level.WARN):
        if worst := [one for one in found if one.level is level]:
            return Finding(level, "; ".join(one.text for one in worst), worst[0].hint)
    if not found:
        looked = ", ".join(str(path) for path in (home, *more))
        return fine(f"no role in {looked} belongs to a site; on a single machine none needs to")
    return fine("; ".join(one.text for one in found))


def _state(folder: Path) -> Finding:
    try:
        held = load_credentials(folder)
    except LinkError as error:
        hint = "delete that folder `site`, and join again with --join"
        return broken(f"{folder.name}: {error.sentence}", hint)
    if held is None:
        return _not_yet(folder)
    own, now = held.certificate, time.time()
    until = time.strftime("%Y-%m-%d", time.gmtime(own.not_after))
    who = f"{folder.name}: {own.role} of site {own.site}"
    renew = "start the role where it can reach the coordinator"
    if held.revocations().has(own):
        return broken(f"{who}, revoked", JoinError("revoked").hint)
    if now < own.not_before:
        hint = "set the clock (timedatectl set-ntp true): until then certificate dates do not count"
        return odd(f"{who}, certificate not valid yet by this machine's clock", hint)
    if now >= own.not_after:
        return odd(f"{who}, certificate expired on {until}", f"{renew}: it is then renewed")
    if now >= own.renew_at + LATE_S:
        return odd(f"{who}, certificate until {until}", f"renewal is overdue: {renew}")
    if own.role not in ("agent", "edge"):
        return fine(f"{who}, created here")
    return asyncio.run(_asked(folder, f"{who}, certificate until {until}"))


def _not_yet(folder: Path) -> Finding:
    waits = read_waits(folder)
    if waits is None:
        hint = "start it with `--join` and an invitation from `fedagent devices invite NAME`"
        return odd(f"{folder.name}: started to join a site but did not finish", hint)
    if waits.refused:
        refused = JoinError(waits.refused)
        return broken(f"{folder.name}: was refused: {refused.words}", refused.hint)
    hint = f"`fedagent devices accept {waits.code}` at the coordinator, if it shows the same code"
    return odd(f"{folder.name}: is waiting to be accepted, code {waits.code}", hint)


async def _asked(folder: Path, who: str) -> Finding:
    if not (folder / IDENTITY_FILE).exists():
        return broken(f"{who}; its site files are incomplete", "restore them, or join again")
    try:
        async with asyncio.timeout(ASK_S):
            place, _ = await ask_again(folder, load_or_create(folder))
    except JoinError as error:
        return broken(f"{who}; {error.words}", error.hint)
    except (JoinUnreachableError, TimeoutError) as error:
        silent = getattr(error, "sentence", "no join service answers")
        return odd(f"{who}; {silent}", JoinUnreachableError.hint)
    return fine(f"{who}, confirmed by {place}")
