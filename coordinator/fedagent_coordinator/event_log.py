"""The coordinator's events for people: how loud each one is, and in which words."""

import logging
from collections.abc import Mapping

from .core.readiness import DECLINED, STATISTICS

LONG_BACKOFF_S = 1.0
"""A client that is left out for so long has declined several times in a row."""


def level_of(name: str, fields: Mapping[str, object]) -> int:
    """Return how loud an event is: what costs the run its rounds is a warning."""
    loud = (
        name in {"edge_lost", "edge_refused", "warning"}
        or (name == "round" and not fields["used"])
        or (name == "waiting" and fields["reason"] == DECLINED)
        or (name == "opinions" and not fields.get("answered", fields.get("volunteers")))
        or (name == "declined" and float(str(fields["seconds"])) >= LONG_BACKOFF_S)
    )
    return logging.WARNING if loud else logging.INFO


def in_words(name: str, fields: Mapping[str, object]) -> str:
    """Return an event with its short fields for a person."""
    if name == "waiting" and "wanted" in fields:
        why = str(fields["reason"])
        return f"waiting for {why}: {fields[why]} of {fields['wanted']}"
    if name == "waiting" and fields["reason"] == STATISTICS:
        return f"waiting for the samples of {fields['agents']} agents to be added up"
    if name == "edge_refused":
        return f"edge {fields['edge']} {fields['reason']}"
    if name == "warning":
        return f"samples {fields['reason']} (agents {_joined(fields['agents'])})"
    return f"{name}: " + " ".join(
        f"{key}={value}"
        for key, value in fields.items()
        if value not in ("", None) and not _long(value)
    )


def _joined(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else ""


def _long(value: object) -> bool:
    return isinstance(value, dict | list) and bool(value)
