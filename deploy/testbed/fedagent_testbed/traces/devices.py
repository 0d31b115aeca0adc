"""Phones: how fast they compute (AI Benchmark) and how their users are connected (FLASH)."""

from pathlib import Path

import numpy as np

from .errors import TraceError
from .files import DEFAULT, Limits, number
from .records import MAX_RATE_BPS, CpuScores, UserLinks
from .tables import json_list, json_value

_KILOBYTE_BITS = 8e3
_LINK_KEYS = ("down_u", "down_sigma", "up_u", "up_sigma")


def read_cpu_scores(path: Path, limits: Limits = DEFAULT) -> CpuScores:
    """Return ``CPU_F_AI_Score`` of ``ai_benchmark_*.json``; the first of a repeated phone.

    Raises:
        TraceError: The file or an entry of it cannot be used.
    """
    scores: dict[str, float] = {}
    for entry, record in enumerate(json_list(path, limits), 1):
        try:
            model = record["Model"].strip()  # type: ignore[index] # checked by the except
            score = number(str(record["CPU_F_AI_Score"]), 1e9)  # type: ignore[index] # the same
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise TraceError(str(path), entry, "has no Model and CPU_F_AI_Score") from error
        if score <= 0:
            raise TraceError(str(path), entry, "has a score of 0")
        scores.setdefault(model, score)
    if not scores:
        raise TraceError(str(path), None, "holds no phone")
    return CpuScores(models=tuple(scores), score=np.array(list(scores.values())))


def read_user_links(path: Path, limits: Limits = DEFAULT) -> UserLinks:
    """Return the speeds of ``flash_user_speed.json``, kB/s in the file.

    Raises:
        TraceError: The file or an entry of it cannot be used.
    """
    value = json_value(path, limits)
    if not isinstance(value, dict) or not 0 < len(value) <= limits.rows:
        raise TraceError(str(path), None, "is no object of users")
    rows: list[list[float]] = []
    for entry, record in enumerate(value.values(), 1):
        try:
            speeds = [number(str(record[key]), MAX_RATE_BPS / _KILOBYTE_BITS) for key in _LINK_KEYS]
        except (TypeError, KeyError, ValueError) as error:
            raise TraceError(str(path), entry, f"has no {', '.join(_LINK_KEYS)}") from error
        rows.append(speeds)
    down, down_deviation, up, up_deviation = np.array(rows).T * _KILOBYTE_BITS
    return UserLinks(
        users=tuple(value),
        down_bps=down,
        down_deviation_bps=down_deviation,
        up_bps=up,
        up_deviation_bps=up_deviation,
    )
