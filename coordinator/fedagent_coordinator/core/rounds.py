"""The round engine: observe, decide, reserve, order, settle, merge, and again.

A pure state machine (docs/protocol.md, One round). Messages, ticks and results
of jobs go in with the time; effects come out, to be performed in order. A disk
effect stands before everything that relies on it.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from enum import Enum

import numpy as np
from fedagent_protocol.errors import MalformedError, ProtocolError
from fedagent_protocol.messages import (
    Chunk,
    EdgeHello,
    EdgeStatus,
    EdgeToCoordinator,
    EdgeWelcome,
    Need,
    ReportReceipt,
    RoundColumns,
    RoundOpen,
    RoundReport,
    RunEnded,
    Weighting,
)

from ..policies.base import (
    MAX_MICRO,
    OPINIONS,
    TRUTH,
    Purpose,
    Selection,
    SelectionPolicy,
    round_rng,
)
from ..policies.selection import check_selection
from .edges import EdgeSession, EdgeTable, Indices
from .effects import (
    CommitModel,
    Effect,
    End,
    Evaluate,
    Event,
    Learn,
    Merge,
    Reserve,
    Send,
    SendGlobal,
    Settle,
)
from .errors import NeedsUnmetError
from .merge import MergeWork, Serving
from .observe import Observation, Observed, merge_observations
from .orders import OrderedRound, affordable
from .outcomes import EdgePart, settle_outcomes
from .settings import Progress, Settings

PAUSE_FIRST_S = 0.1
PAUSE_LONGEST_S = 1.0
REOPEN_S = 0.25
REOFFER_S = 1.5
REMIND_S = 30.0
KEPT_FATES = 64


class Phase(Enum):
    """What the engine waits for."""

    IDLE = "idle"
    OBSERVING = "observing"
    ORDERED = "ordered"
    MERGING = "merging"
    ENDED = "ended"
