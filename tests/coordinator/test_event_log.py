"""How loud events are: what costs the run its rounds, or its opinions, is a warning."""

import logging

import pytest

from fedagent_coordinator.event_log import level_of


@pytest.mark.parametrize(
    ("name", "fields", "level"),
    [
        ("opinions", {"mode": "report", "answered": 3}, logging.INFO),
        ("opinions", {"mode": "report", "answered": 0}, logging.WARNING),
        ("opinions", {"mode": "peers", "volunteers": 2}, logging.INFO),
        ("opinions", {"mode": "peers", "volunteers": 0}, logging.WARNING),
        ("round", {"used": 1}, logging.INFO),
        ("round", {"used": 0}, logging.WARNING),
        ("edge_lost", {"edge": "e"}, logging.WARNING),
    ],
)
def test_an_event_is_as_loud_as_it_matters(
    name: str, fields: dict[str, object], level: int
) -> None:
    assert level_of(name, fields) == level
