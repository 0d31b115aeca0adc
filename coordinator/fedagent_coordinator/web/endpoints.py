"""The endpoints of `/api` as data: routes and the OpenAPI document both follow from them."""

from dataclasses import dataclass
from typing import Any

import msgspec

from fedagent_coordinator.alarms import Alarm
from fedagent_coordinator.explanation import Explanation

from .records import (
    Accept,
    DeviceCard,
    DeviceDetail,
    Done,
    EdgeCard,
    Field,
    Problem,
    RoundCard,
    Timeline,
    Token,
    Waiting,
)

MOST = 999_999_999
"""The largest number of a query."""
_COUNT = {"type": "integer", "minimum": 0, "maximum": MOST}
_TEXT = {"type": "string"}
_COUNTED = frozenset({"round"})
"""Parts of a path that are numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One path: what it takes and what it answers."""

    name: str  # of the method that answers
    path: str
    about: str
    answer: Any  # a type
    takes: type[msgspec.Struct] | None = None
    query: tuple[tuple[str, str], ...] = ()  # whole numbers, each with what it says
    media: str = "application/json"

    @property
    def method(self) -> str:
        """POST where it takes something."""
        return "GET" if self.takes is None else "POST"


ENDPOINTS = (
    Endpoint(
        name="field", path="/api/field", about="Everything that the page shows.", answer=Field
    ),
    Endpoint(
        name="events",
        path="/api/events",
        about="The same as server-sent events: `field` with a Field, then `change` with a Change.",
        answer=str,
        media="text/event-stream",
    ),
    Endpoint(
        name="rounds",
        path="/api/rounds",
        about="The newest rounds.",
        answer=tuple[RoundCard, ...],
        query=(("last", "Number of rounds; all that the page has if left out."),),
    ),
    Endpoint(
        name="round",
        path="/api/rounds/{round}",
        about="The orders of a round, one of the newest two.",
        answer=Timeline,
    ),
    Endpoint(name="edges", path="/api/edges", about="All edges.", answer=tuple[EdgeCard, ...]),
    Endpoint(
        name="devices", path="/api/devices", about="All devices.", answer=tuple[DeviceCard, ...]
    ),
    Endpoint(
        name="device",
        path="/api/devices/{id}",
        about="One device: its context, its trust and its newest orders.",
        answer=DeviceDetail,
    ),
    Endpoint(
        name="why",
        path="/api/devices/{id}/why",
        about="Why it was, or was not, selected in a round.",
        answer=Explanation,
        query=(
            ("round", "Number of the round; the newest one if left out."),
            ("nearest", "0 leaves out the nearest change, which takes a long time to compute."),
        ),
    ),
    Endpoint(
        name="alarms",
        path="/api/alarms",
        about="Open alarms, and how to fix them.",
        answer=tuple[Alarm, ...],
    ),
    Endpoint(
        name="pending",
        path="/api/pending",
        about="Devices and edges that ask to join the site; codes are shown only with the token.",
        answer=tuple[Waiting, ...],
    ),
    Endpoint(
        name="accept",
        path="/api/pending/{id}/accept",
        about="Accept one, if it still shows this code. Needs the token.",
        answer=Done,
        takes=Accept,
    ),
    Endpoint(
        name="session",
        path="/api/session",
        about="Whether this viewer may change something.",
        answer=Done,
    ),
    Endpoint(
        name="sign_in",
        path="/api/session",
        about="Open a session by the token; the answer sets its cookie.",
        answer=Done,
        takes=Token,
    ),
)


def openapi(version: str) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of `/api`."""
    kinds = [one.answer for one in ENDPOINTS] + [one.takes for one in ENDPOINTS if one.takes]
    schemas, parts = msgspec.json.schema_components(
        [*kinds, Problem], ref_template="#/components/schemas/{name}"
    )
    answers = dict(zip([one.name for one in ENDPOINTS], schemas, strict=False))
    paths: dict[str, dict[str, Any]] = {}
    for one in ENDPOINTS:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, answers[one.name])
    return {
        "openapi": "3.1.0",
        "info": {"title": "fedagent coordinator", "version": version},
        "paths": paths,
        "components": {
            "schemas": parts,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "fedagent_page"},
            },
        },
    }


def _operation(one: Endpoint, schema: object) -> dict[str, Any]:
    problem = {"$ref": "#/components/schemas/Problem"}
    found: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.about,
        "security": [{"token": []}, {"session": []}, *([{}] if one.takes is None else [])],
        "parameters": [
            *(
                {
                    "name": part,
                    "in": "path",
                    "required": True,
                    "schema": _COUNT if part in _COUNTED else _TEXT,
                }
                for part in (each[1:-1] for each in one.path.split("/") if each.startswith("{"))
            ),
            *(
                {"name": name, "in": "query", "description": about, "schema": _COUNT}
                for name, about in one.query
            ),
        ],
        "responses": {
            "200": {"description": "OK", "content": {one.media: {"schema": schema}}},
            "default": {
                "description": "What went wrong, and how to fix it.",
                "content": {"application/json": {"schema": problem}},
            },
        },
    }
    if one.takes is not None:
        body = {"$ref": f"#/components/schemas/{one.takes.__name__}"}
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body}},
        }
    return found
