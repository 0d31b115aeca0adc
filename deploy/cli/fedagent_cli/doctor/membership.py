"""The doctor's look at sites: which roles of this machine belong to one, and does it know them?"""

import asyncio
from pathlib import Path

from fedagent_cli.doctor.checks import Finding, broken, fine, odd
from fedagent_node.data_dir import IDENTITY_FILE, load_or_create
from fedagent_node.errors import JoinError, JoinUnreachableError, LinkError
from fedagent_node.site.credentials import (
    FOLDER,
    Credentials,
    load_credentials,
    read_joined,
)
from fedagent_node.site.enrolling import read_waits
from fedagent_node.site.join_client import Applicant, Waiting, ask

MAX_ROLES = 8
"""Data directories that are looked at."""
ASK_S = 3.0


def membership(home: Path, *more: Path) -> Finding:
    """Ask the join service of each role of this machine whether it still belongs to its site.

    `more` are data directories outside of `home`.
    """
    named = [path.absolute() for path in more if (path / FOLDER).exists()]
    found_here = sorted(path.parent.absolute() for path in home.glob(f"*/{FOLDER}"))
    folders = list(dict.fromkeys([*named, *found_here]))[:MAX_ROLES]
    found = [asyncio.run(_state(folder)) for folder in folders]
    for bad in (broken, odd):
        worst = [one for one in found if one.level == bad("").level]
        if worst:
            return bad("; ".join(one.text for one in worst), worst[0].hint)
    if not found:
        looked = ", ".join(str(path) for path in (home, *more))
        return fine(f"no role in {looked} belongs to a site; on a single machine none needs to")
    return fine("; ".join(one.text for one in found))


async def _state(folder: Path) -> Finding:
    """Return what one role is to its site."""
    name = folder.name
    try:
        credentials = load_credentials(folder)
    except LinkError as error:
        return broken(f"{name}: {error.sentence}", error.hint)
    if credentials is None:
        return _not_yet(folder)
    own = credentials.certificate
    if own.role not in ("agent", "edge"):
        return fine(f"{name}: site {own.site} was created here")
    return await _asked(folder, credentials)


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


async def _asked(folder: Path, credentials: Credentials) -> Finding:
    own, joined = credentials.certificate, read_joined(folder)
    if joined is None or not (folder / IDENTITY_FILE).exists():
        return broken(
            f"{folder.name}: its site files are incomplete", "restore them, or join again"
        )
    applicant = Applicant(
        load_or_create(folder),
        "edge" if own.role == "edge" else "agent",
        own.site,
        joined.name,
        fingerprint=joined.fingerprint,
    )
    silent = "no address of a join service is known"
    for place in joined.services:
        try:
            async with asyncio.timeout(ASK_S):
                answer = await ask(place, applicant)
        except JoinUnreachableError as error:
            silent = error.sentence
            continue
        except TimeoutError:
            silent = f"the join service at {place} does not answer (timed out)"
            continue
        except JoinError as error:
            return broken(f"{folder.name}: site {own.site}: {error.words}", error.hint)
        if isinstance(answer, Waiting):
            forgotten = JoinError("forgotten")
            return broken(f"{folder.name}: site {own.site}: {forgotten.words}", forgotten.hint)
        return fine(f"{folder.name}: {own.role} of site {own.site}, confirmed by {place}")
    return odd(f"{folder.name}: {own.role} of site {own.site}; {silent}", JoinUnreachableError.hint)
