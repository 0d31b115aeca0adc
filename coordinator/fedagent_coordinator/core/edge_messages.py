"""What a message of an edge does, in whichever phase it comes."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec import structs

from fedagent_coordinator.policies.base import MAX_MICRO
from fedagent_node.effects import Effect, Emit, Mark, Received
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
    RoundColumns,
    RoundReport,
    Volunteers,
)
from fedagent_protocol.transfer import Layout

from . import revocation_lists
from .edges import EdgeSession
from .effects import NoteDevices
from .evaluating import Evaluating
from .evaluation import AnswerMessage
from .merge import Merging
from .ordered import Ordered
from .phases import Idle, Observing

if TYPE_CHECKING:
    from .engine import Engine


def receive(engine: "Engine", received: Received, now: float) -> list[Effect]:
    """Do what a message asks for; see `Engine.receive`."""
    edge, message = received.sender, received.message
    try:
        match message:
            case EdgeHello():
                return _hello(engine, edge, message, now)
            case EdgeStatus():
                noted = NoteDevices(edge, _of_members(engine, edge, message))
                return [noted, *_status(engine, edge, message, now)]
            case Need():
                return _need(engine, edge, message, now, link_idle=received.link_idle)
            case Chunk():
                return _chunk(engine, edge, message, now)
            case RoundReport():
                return [Mark("reported"), *_answer(engine, edge, message, now)]
            case Revocations():
                known = engine.edges.by_id.get(edge)
                return [] if known is None else revocation_lists.take(engine, known, message)
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
    engine.once.greeted(edge)
    ours = hello.run == engine.settings.run
    skipped = engine.skip(session, hello.round, now) if ours else []
    return skipped + _greet(engine, session, now, changed=changed)


def _status(engine: "Engine", edge: str, status: EdgeStatus, now: float) -> list[Effect]:
    session, changed = _hear(engine, edge, status.epoch, now)
    session.rent = status.rent
    foreign = status.run != engine.settings.run
    if not foreign and status.names and engine.enrolled is None:
        names = {agent: safe_text(name, limit=100) for agent, name in status.names.items()}
        engine.indices.label_clients(names)
    session.model = "" if foreign else status.model
    lags = revocation_lists.compare(engine, session, status.crl)
    grown, session.agents = status.agents > session.agents, status.agents
    had = session.trouble
    said = _trouble(engine, session, status.trouble, now)
    if foreign or changed or (had and not session.trouble):
        return lags + said + _greet(engine, session, now, changed=changed)
    return lags + said + _news(engine, session, now, grown=grown)


def _trouble(engine: "Engine", session: EdgeSession, trouble: str, now: float) -> list[Effect]:
    """Note why an edge takes no part; say what is new of it."""
    text = safe_text(trouble, limit=200)
    if text == session.trouble:
        return session.in_trouble(text, now)
    session.offered_at = None
    return [*session.in_trouble(text, now), engine.show(engine.status)]


def _news(engine: "Engine", session: EdgeSession, now: float, *, grown: bool) -> list[Effect]:
    match engine.phase:
        case Idle() as idle if grown:
            idle.hurry(now)
        case Observing() as observing:
            return observing.caught_up(session)
    return []


def _answer(
    engine: "Engine", edge: str, message: RoundColumns | RoundReport | AnswerMessage, now: float
) -> list[Effect]:
    """Note a sign of life, then take in the answer."""
    if not _ours(engine, message.run):
        return []
    session, changed = _hear(engine, edge, message.epoch, now)
    effects = _greet(engine, session, now, changed=True) if changed else []
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
        engine.counters["columns_unasked"] += 1
        return []
    columns, effects = _of_site(engine, edge, columns)
    client = edge.index_of(columns.session, engine.indices, engine.enrolled)
    if (client < 0).any():
        effects += _crowded(engine, edge, int((client < 0).sum()))
        columns = _kept(columns, client >= 0)
    return effects + engine.phase.receive_columns(edge, columns, now)


def _crowded(engine: "Engine", edge: EdgeSession, agents: int) -> list[Effect]:
    """Count agents that are not observed, as their edge has named too many; say it once."""
    engine.counters["no_index"] += agents
    if edge.crowded:
        return []
    edge.crowded = True
    return [Emit("crowded", {"edge": edge.id, "name": edge.name, "agents": agents})]


def _kept(columns: Columns, rows: npt.NDArray[np.bool_]) -> Columns:
    names = ("session", "price", "context_seq", "age_ms", "available", "values")
    claim = columns.claim[rows] if len(columns.claim) else columns.claim
    return replace(columns, claim=claim, **{n: getattr(columns, n)[rows] for n in names})


def _of_site(engine: "Engine", edge: EdgeSession, named: Columns) -> tuple[Columns, list[Effect]]:
    """Leave out who does not belong: an edge may name whom it likes, and is paid for it."""
    if engine.enrolled is None:
        return named, []
    ids = [edge.ids[row] for row in named.session.tolist()]
    known = np.array([agent in engine.enrolled for agent in ids], dtype=np.bool_)
    count = int((~known).sum())
    engine.counters["not_enrolled"] += count
    said = edge.named_strangers(named.session[~known])
    return _kept(named, known) if count else named, said


def _of_members(engine: "Engine", edge: str, status: EdgeStatus) -> EdgeStatus:
    """Return a status without what it tells of devices that do not belong to the site."""
    enrolled = engine.enrolled
    if enrolled is None:
        return status
    kept = tuple(note for note in status.devices if note.agent in enrolled)
    left_out = len(status.devices) - len(kept)
    engine.counters["note_not_enrolled"] += left_out
    if left_out and edge in engine.edges.by_id:
        engine.edges.by_id[edge].untold = True
    return structs.replace(status, devices=kept)


def _report(engine: "Engine", edge: EdgeSession, report: RoundReport, now: float) -> list[Effect]:
    _chunks_of(report.chunk_bytes, engine, edge)
    if isinstance(engine.phase, Ordered):
        done = engine.phase.receive_report(edge.id, report, now)
        if done is not None:
            return done
    if report.round > engine.last_settled:
        engine.counters["report_unordered"] += 1
        return []
    settled = engine.in_books(report.round, edge.id)
    engine.counters["report_repeated" if settled else "report_too_late"] += 1
    return [engine.send(edge.id, ReportReceipt(round=report.round, too_late=not settled))]


def _chunks_of(chunk_bytes: int, engine: "Engine", edge: EdgeSession) -> None:
    """Note how an edge cuts models, unless the model of this run cannot be cut so."""
    try:
        Layout(engine.models.size, chunk_bytes)
    except ProtocolError as error:
        engine.counters[error.reason] += 1
        return
    edge.chunk_bytes = chunk_bytes


def _evaluation(
    engine: "Engine", edge: EdgeSession, message: AnswerMessage, now: float
) -> list[Effect]:
    if isinstance(engine.phase, Evaluating):
        done = engine.phase.receive_answer(edge, message, now)
        if done is not None:
            return done
    if message.round > engine.last_settled:
        engine.counters["opinions_unasked"] += 1
        return []
    # An edge that hears that it is over ceases to repeat itself.
    engine.counters["opinions_late"] += 1
    ended = OpinionClose if isinstance(message, Volunteers) else OpinionsReceipt
    return [engine.send(edge.id, ended(round=message.round))]


def _need(engine: "Engine", edge: str, need: Need, now: float, *, link_idle: bool) -> list[Effect]:
    session = engine.edges.by_id.get(edge)
    if session is None or not _ours(engine, need.run):
        return []
    if need.digest == engine.once.digest:
        session.heard_at = now
        return engine.once.serve(edge, need, link_idle=link_idle)
    if need.digest != engine.models.digest:
        engine.counters["need_unknown"] += 1
        return []
    session.heard_at = now
    effects, last = engine.models.serve(session, need, now, link_idle=link_idle)
    if last and isinstance(engine.phase, Observing):
        engine.phase.model_is_coming(now)
    return effects


def _chunk(engine: "Engine", edge: str, chunk: Chunk, now: float) -> list[Effect]:
    if not _ours(engine, chunk.run) or not isinstance(engine.phase, Merging):
        return []
    return engine.phase.receive_chunk(edge, chunk, now)


def _ours(engine: "Engine", run: str) -> bool:
    if run != engine.settings.run:
        engine.counters["other_run"] += 1
    return run == engine.settings.run


def _hear(engine: "Engine", edge: str, epoch: str, now: float) -> tuple[EdgeSession, bool]:
    session, changed = engine.edges.hear(edge, epoch, now, engine.models.digest)
    if changed and isinstance(engine.phase, Observing):
        engine.phase.restarted(edge)
    return session, changed


def _greet(engine: "Engine", edge: EdgeSession, now: float, *, changed: bool) -> list[Effect]:
    said = engine.joined(edge, now) if changed else []
    return [engine.welcome(edge.id), *said, *engine.phase.greet(edge, now)]
