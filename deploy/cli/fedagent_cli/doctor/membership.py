"""The doctor's look at sites: which roles of this machine belong to one, and does it know them?"""

import asyncio
import time
from pathlib import Path

from fedagent_node.data_dir import IDENTITY_FILE, load_or_create
from fedagent_node.errors import JoinError, LinkError
from fedagent_node.site import FOLDER
from fedagent_node.site.certificates import CLOCK_S
from fedagent_node.site.credentials import load_credentials
from fedagent_node.site.enrolling import ask_again

from .checks import Finding, Level, broken, fine, odd

MAX_ROLES = 8
"""Data directories that are looked at."""
ASK_S = 10.0


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
        hint = "start it with `--join` and an invitation from `fedagent devices invite NAME`"
        return odd(f"{folder.name}: started to join a site but did not finish", hint)
    own = held.certificate
    until = time.strftime("%Y-%m-%d", time.gmtime(own.not_after))
    who = f"{folder.name}: {own.role} of site {own.site}"
    if held.revocations().has(own):
        return broken(f"{who}, revoked", JoinError("revoked").hint)
    who = f"{who}, certificate until {until}"
    if own.role not in ("agent", "edge"):
        return fine(f"{who}, created here")
    return asyncio.run(_asked(folder, who))


async def _asked(folder: Path, who: str) -> Finding:
    if not (folder / IDENTITY_FILE).exists():
        return broken(f"{who}; its site files are incomplete", "restore them, or join again")
    try:
        async with asyncio.timeout(ASK_S):
            admitted = await ask_again(folder, load_or_create(folder))
    except TimeoutError:
        silent = JoinError("unreachable")
        return odd(f"{who}; {silent.words}", silent.hint)
    except JoinError as error:
        level = odd if error.reason == "unreachable" else broken
        return level(f"{who}; {error.words}", error.hint)
    days = (time.time() - admitted.answer.now_s) / 86_400
    if abs(days) * 86_400 > CLOCK_S:
        way = "ahead of" if days > 0 else "behind"
        text = f"{who}, clock {abs(days):.1f} days {way} the coordinator's"
        return odd(text, "set it: timedatectl set-ntp true")
    return fine(f"{who}, confirmed by {admitted.place}")
