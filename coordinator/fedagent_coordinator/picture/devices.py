"""Devices of a run as people see them: where each is, what it did, and why it takes no part."""

from collections.abc import Mapping

from msgspec import Struct, structs

from fedagent_coordinator.books.queries import Queries
from fedagent_coordinator.books.rows import DeviceRow, RunRow

from .status_files import Known


class DeviceCard(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device: whether it is here, and what it did in the run; None is what is not known."""

    id: str
    name: str
    index: int | None = None  # None for one that no round could have
    online: bool | None = None
    seen_ms: int | None = None  # when it came or was heard last
    edges: tuple[str, ...] = ()  # that have a session with it
    address: str = ""
    software: str = ""
    reason: str = ""  # why it does not take part, and which edge says so
    note: str = ""  # what is to be known of its samples or its link
    ordered: int = 0
    in_time: int = 0
    used: int = 0
    paid_micro: int = 0
    price_micro: int = 0
    last_round: int | None = None
    last_status: str = ""
    released: int = 0
    opinion: float | None = None
    trust: float | None = None
    claim_gap: float | None = None
    epsilon: float | None = None  # the most that its updates cost, where that is counted
    context: Mapping[str, float] = {}  # of `totals.TOLD`, as the newest round saw it
    enrolment: str = ""


def devices_of(
    reader: Queries, run: RunRow, *, running: bool | None = True, known: Known | None = None
) -> list[DeviceCard]:
    """Return every device of a run, and those that edges tell of though no round could have them.

    `running` is whether its coordinator is; None if unknown. `known` is what edges tell, if it
    was read already.
    """
    known = Known.read(reader.folder) if known is None else known
    heard = known.devices if known is not None and known.run == run.run_id else {}
    rows = reader.devices(run.run_id)
    others = heard.keys() - {row.agent for row in rows}
    unseen = [DeviceRow(client=-1, agent=one) for one in heard if one in others]
    # Who was online when the coordinator was killed was so at least until then.
    killed = running is False and bool(heard)
    until_ms = round(1000 * (reader.folder / Known.FILE).stat().st_mtime) if killed else 0
    edges = reader.edges(run.run_id)

    def card(row: DeviceRow) -> DeviceCard:
        made = DeviceCard(
            id=row.agent,
            name=row.name,
            index=None if row.client < 0 else row.client,
            reason=row.last_reason if row.last_status == "declined" else "",
            note=row.last_reason if row.last_status in {"arrived", "late", "missed"} else "",
            ordered=row.ordered,
            in_time=row.in_time,
            used=row.used,
            paid_micro=row.paid_micro,
            last_round=row.last_round,
            last_status=row.last_status or "",
            released=row.released,
        )
        if (device := heard.get(row.agent)) is None:
            return made
        here = bool(device.edges)
        return structs.replace(
            made,
            online=None if running is None else here and running,
            seen_ms=max(device.seen_ms, until_ms * here),
            edges=tuple(device.edges) if running else (),
            address=device.word.address,
            software=device.word.software,
            reason=device.reason(edges) or made.reason,
        )

    return [card(row) for row in (*rows, *unseen)]
