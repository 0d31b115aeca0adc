"""The coordinator's settings, read once."""

import os
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, structs

from fedagent_node.settings import (
    BrokerConfig,
    SettingError,
    check_site,
    listen_host,
    load_settings,
)

PREFIX = "FEDAGENT_COORDINATOR_"


class CoordinatorConfig(BrokerConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one coordinator.

    Attributes:
        recipe: The recipe's file.
        sets: Overrides of the recipe, ``key.path=value``.
        policy: Policy instead of the recipe's.
        seed: Seed instead of the recipe's.
        new_run: End an open run of another recipe, or repeat a finished one.
        more_rounds: Let the run go on for so many rounds, if it has ended; 0 for not.
        init: Model that a new run begins from: a safetensors file, or a digest of one here.
        accept_lost_history: Go on although the database is older than it was.
        wait_edges, wait_agents: What must be there before the first round.
        grace_s: How much longer than the recipe's max_wait an edge may take to report.
        linger_s: How long edges are told that the run ended.
    """

    recipe: str
    sets: tuple[str, ...] = ()
    policy: str | None = None
    seed: Annotated[int, Meta(ge=0, lt=2**53)] | None = None
    new_run: bool = False
    accept_lost_history: bool = False
    wait_edges: Annotated[int, Meta(ge=1, le=100_000)] = 1
    wait_agents: Annotated[int, Meta(ge=1, le=10_000_000)] = 1
    grace_s: Annotated[float, Meta(ge=0, le=3600)] = 2.0
    linger_s: Annotated[float, Meta(ge=0, le=600)] = 1.0
    more_rounds: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    init: Annotated[str, Meta(max_length=4096)] = ""

    @property
    def recipe_sets(self) -> tuple[str, ...]:
        """All overrides of the recipe; later ones win."""
        policy = () if self.policy is None else (f"policy.name={self.policy}",)
        seed = () if self.seed is None else (f"seed={self.seed}",)
        return (*self.sets, *policy, *seed)


def load(text: str | None, environment: Mapping[str, str] = os.environ) -> CoordinatorConfig:
    """Return the settings from JSON, a file, and ``FEDAGENT_COORDINATOR_*`` variables.

    Raises:
        SettingError: One line with the key and the hint.
    """
    config = load_settings(CoordinatorConfig, text, prefix=PREFIX, environment=environment)
    check_site(config.site)
    if config.new_run and config.more_rounds:
        raise SettingError("more_rounds", "does not go with new_run", "leave one of them out")
    config.shared()
    return structs.replace(config, listen=listen_host(config.listen))
