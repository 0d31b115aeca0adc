"""What a message of an edge does, in whichever phase it comes."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec import structs

from fedagent_coordinator.policies.base import MAX_MICRO
from fedagent_node.effects import Effect, Emit, Mark, Received, Warn
from fedagent_protocol.columns import Columns, unpack
from fedagent_protocol.errors import MalformedError, ProtocolError, safe_text
from fedagent_protocol.messages import (
    Chunk,
    EdgeHello,
    EdgeMoments,
    EdgeStatus,
    Need,
    OpinionClose,
    Opinions,
    OpinionsReceipt,
    ReportReceipt,
    Revocations,
    RevocationsNeed,
    RoundColumns,
    RoundReport,
    Volunteers,
)
from fedagent_protocol.transfer import Layout

from .edges import EdgeSession
from .effects import LearnRevocations, NoteDevices
from .evaluating import Evaluating
from .evaluation import AnswerMessage
from .merge import Merging
from .ordered import Ordered
from .phases import Idle, Observing

if TYPE_CHECKING:
    from .engine import Engine

MOST_SKIPPED = 10_000
"""Edges are believed that so many rounds were ordered since a backup; of one start, in all."""
ASKS = 3
"""How often an edge is asked for a list of the revoked that we have not made."""


def receive(engine: "Engine", received: Received, now: float) -> list[Effect]:
    """Do what a message asks for; see `Engine.receive`."""
    edge, message = received.sender, received.message
    known = engine.edges.by_id.get(edge)
    try:
        match message:
            case EdgeHello():
                return _hello(engine, edge, message, now)
            case EdgeStatus():
                noted = NoteDevices(edge, _of_members(engine, known, message))
                return [noted, *_status(engine, edge, message, now)]
            case Need() if known is not None and _ours(engine, message.run):
                sent, last = engine.models.serve(known, message, now, link_idle=received.link_idle)
                if last and isinstance(engine.phase, Observing):
                    engine.phase.model_is_coming(now)
                return sent
            case Chunk() if isinstance(engine.phase, Merging) and _ours(engine, message.run):
                return engine.phase.receive_chunk(edge, message, now)
            case RoundReport():
                return [Mark("reported"), *_answer(engine, edge, message, now)]
            case Revocations() if known is not None and 0 < known.crl_asked <= ASKS:
                known.crl_asked = ASKS + 1
                return [LearnRevocations(edge, message.crl)]
            case RoundColumns() | Opinions() | Volunteers() | EdgeMoments():
                return _answer(engine, edge, message, now)
    except ProtocolError as error:
        engine.counters[error.reason] += 1
    return []


def _hello(engine: "Engine", edge: str, hello: EdgeHello, now: float) -> list[Effect]:
    if hello.edge != edge:
        raise MalformedError("an edge's hello names another edge")
    if hello.head is not None:
        engine.witness(edge, hello.head)
    session, changed = _hear(engine, edge, hello.epoch, now)
    session.name, session.rent = engine.called(edge, hello.name), hello.rent
    session.senders.clear()
    ours = hello.run == engine.settings.run
    skipped = _skip(engine, session, hello.round, now) if ours else []
    return skipped + _greet(engine, session, now, changed)


def _skip(engine: "Engine", edge: EdgeSession, round_: int, now: float) -> list[Effect]:
    """Use no round's number again that an edge was ordered: these books are of a backup.

    Each claim skips as many numbers at least as all before it: some fifteen reach `MOST_SKIPPED`,
    so that no edge, and no crowd of them, has all others asked for the same again and again.
    """
    newest = max(engine.round - engine.undecided, engine.claimed)
    if round_ <= newest:
        return []
    room = MOST_SKIPPED - engine.skipped
    if round_ - newest > room:
        line = f"edge {edge.id} says that it was ordered round {round_}: here it is {engine.round}"
        return [Warn(edge.id, f"{line}, and more than {MOST_SKIPPED} are not skipped; ignored")]
    more = min(max(round_ - newest, engine.skipped), room)
    engine.claimed, engine.skipped = newest + more, engine.skipped + more
    line = f"edge {edge.id} was already ordered round {round_}: the database is from a backup;"
    effects: list[Effect] = [Warn(edge.id, f"{line} continuing with round {newest + more + 1}")]
    if not engine.undecided:
        return effects
    engine.skip()
    return effects + (engine.open(now) if isinstance(engine.phase, Observing) else [])


def _status(engine: "Engine", edge: str, status: EdgeStatus, now: float) -> list[Effect]:
    session, changed = _hear(engine, edge, status.epoch, now)
    session.rent = status.rent
    foreign = status.run != engine.settings.run
    if not foreign and engine.enrolled is None:
        names = {one.agent: safe_text(one.name, limit=100) for one in status.devices if one.name}
        engine.indices.label_clients(names)
    session.model = "" if foreign else status.model
    effects = _compare_lists(engine, session, status.crl)
    more, session.agents = status.agents > session.agents, status.agents
    had, trouble = session.trouble, safe_text(status.trouble, limit=200)
    if trouble != had:
        effects += [*session.in_trouble(trouble, now), engine.show(engine.status)]
    if foreign or changed or (had and not trouble):
        return effects + _greet(engine, session, now, changed)
    match engine.phase:
        case Idle() as idle if more:
            idle.hurry(now)
        case Observing() as observing:
            return effects + observing.caught_up(session)
    return effects


def _compare_lists(engine: "Engine", edge: EdgeSession, number: int) -> list[Effect]:
    """Send an edge the list of the revoked that it lacks, or ask it for one that we have not made.

    A coordinator on a backup has lost who was revoked since: who is out must not come in again.
    """
    edge.crl = number
    ours = engine.revocations
    if not ours.crl:
        return []
    if not owes_list(engine, edge):
        return [engine.send(edge.id, ours)] if number < ours.number else []
    edge.crl_asked += 1
    effects: list[Effect] = []
    if edge.crl_asked == 1:
        text = (
            f"edge {edge.name or edge.id} goes by revocation list {number}, which this coordinator "
            f"(list {ours.number}) has not made or has lost: it is asked for it, so that who was "
            "revoked since the backup stays so"
        )
        effects.append(Warn("", text, once=True))
    return [*effects, engine.send(edge.id, RevocationsNeed(number=ours.number))]


def owes_list(engine: "Engine", edge: EdgeSession) -> bool:
    """Return whether an edge has, or may have, a list that we have not made and not seen."""
    after, before = engine.lost_lists
    if edge.crl is None:
        return before > 0  # its first status tells
    unknown = edge.crl > engine.revocations.number or after < edge.crl < before
    return unknown and edge.crl_asked < ASKS


def _answer(
    engine: "Engine", edge: str, message: RoundColumns | RoundReport | AnswerMessage, now: float
) -> list[Effect]:
    """Note a sign of life, then take in the answer."""
    if not _ours(engine, message.run):
        return []
    session, changed = _hear(engine, edge, message.epoch, now)
    effects = _greet(engine, session, now, changed) if changed else []
    match message:
        case RoundColumns():
            return effects + _columns(engine, session, message, now)
        case RoundReport():
            return effects + _report(engine, session, message, now)
        case _:
            return effects + _evaluation(engine, session, message, now)


def _columns(
    engine: "Engine", edge: EdgeSession, message: RoundColumns, now: float
) -> list[Effect]:
    columns = unpack(message)
    if not edge.learn_ids(message.known, message.new_ids):
        return [engine.ask_columns(edge)]
    if (columns.price > MAX_MICRO).any() or (columns.context_seq < 0).any():
        raise MalformedError("a price or a sequence number is out of range")
    edge.model = message.model
    if not isinstance(engine.phase, Observing) or message.round != engine.round:
        return []
    effects: list[Effect] = []
    if engine.enrolled is not None:
        # An edge may name anybody, and is paid for it.
        ids = [edge.ids[row] for row in columns.session.tolist()]
        columns, strangers = _kept(columns, [agent in engine.enrolled for agent in ids])
        engine.counters["not_enrolled"] += strangers
        effects += edge.named_strangers(strangers)
    client = edge.index_of(columns.session, engine.indices, engine.enrolled)
    columns, crowded = _kept(columns, client >= 0)
    engine.counters["no_index"] += crowded
    effects += edge.suspect("crowded", crowded)
    return effects + engine.phase.receive_columns(edge, columns, now)


def _kept(columns: Columns, rows: npt.ArrayLike) -> tuple[Columns, int]:
    """Return the columns with these rows only, and how many are left out."""
    rows = np.asarray(rows, dtype=np.bool_)
    left_out = int((~rows).sum())
    if not left_out:
        return columns, 0
    names = ("session", "price", "context_seq", "age_ms", "available", "values")
    claim = columns.claim[rows] if len(columns.claim) else columns.claim
    kept = {name: getattr(columns, name)[rows] for name in names}
    return replace(columns, claim=claim, **kept), left_out


def _of_members(engine: "Engine", edge: EdgeSession | None, status: EdgeStatus) -> EdgeStatus:
    """Return a status without what it tells of devices that do not belong to the site."""
    enrolled = engine.enrolled
    if enrolled is None:
        return status
    kept = tuple(note for note in status.devices if note.agent in enrolled)
    left_out = len(status.devices) - len(kept)
    engine.counters["note_not_enrolled"] += left_out
    if left_out and edge is not None:
        edge.untold = True
    return structs.replace(status, devices=kept)


def _report(engine: "Engine", edge: EdgeSession, report: RoundReport, now: float) -> list[Effect]:
    try:
        Layout(engine.models.size, report.chunk_bytes)
        edge.chunk_bytes = report.chunk_bytes
    except ProtocolError as error:  # the model of this run cannot be cut so
        engine.counters[error.reason] += 1
    if isinstance(engine.phase, Ordered):
        done = engine.phase.receive_report(edge.id, report, now)
        if done is not None:
            return done
    if report.round > engine.last_settled:
        return []
    too_late = not engine.in_books(report.round, edge.id)
    engine.counters["report_too_late"] += too_late
    return [engine.send(edge.id, ReportReceipt(round=report.round, too_late=too_late))]


def _evaluation(
    engine: "Engine", edge: EdgeSession, message: AnswerMessage, now: float
) -> list[Effect]:
    if isinstance(engine.phase, Evaluating):
        done = engine.phase.receive_answer(edge, message, now)
        if done is not None:
            return done
    if message.round > engine.last_settled:
        return []
    # An edge that hears that it is over ceases to repeat itself.
    ended = OpinionClose if isinstance(message, Volunteers) else OpinionsReceipt
    return [engine.send(edge.id, ended(round=message.round))]


def _ours(engine: "Engine", run: str) -> bool:
    if run != engine.settings.run:
        engine.counters["other_run"] += 1
    return run == engine.settings.run


def _hear(engine: "Engine", edge: str, epoch: str, now: float) -> tuple[EdgeSession, str]:
    session, changed = engine.edges.hear(edge, epoch, now, engine.models.digest)
    if changed and isinstance(engine.phase, Observing):
        engine.phase.restarted(edge)
    return session, changed


def _greet(engine: "Engine", edge: EdgeSession, now: float, changed: str) -> list[Effect]:
    """Bring an edge up to date; say that it came, or, not all the time, that it started again."""
    said: list[Effect] = []
    if changed == "new" or (changed and edge.notices.take(now)):
        engine.label(edge)
        fields = {"edge": edge.id, "name": edge.name}
        said = [Emit("edge_joined", fields), engine.show(engine.status)]
    return [engine.welcome(edge.id), *said, *engine.phase.greet(edge, now)]
