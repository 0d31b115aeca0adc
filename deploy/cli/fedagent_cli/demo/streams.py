"""Streams of the demo's devices that are not the bundled digits."""

import time
from dataclasses import replace

from fedagent_agent.streams import parse_stream
from fedagent_agent.streams.base import StreamError
from fedagent_agent.trainer.open_task import misfit_of
from fedagent_cli.errors import UsageError
from fedagent_task.errors import DatasetError
from fedagent_task.recipe import task_of
from fedagent_task.spec import Recipe

from .plan import Plan

MAX_NOTE = 40


def own_fleet(plan: Plan, template: str) -> Plan:
    """Return the fleet with a stream of the template each; empty leaves the digits.

    Nobody is slow: how long a model of one's own takes is not known, and its rounds are long.
    """
    count = len(plan.agents)
    agents = []
    for number, agent in enumerate(plan.agents, 1):
        source = _filled(template, number, count)
        note = source if len(source) <= MAX_NOTE else "…" + source[1 - MAX_NOTE :]
        agents.append(replace(agent, slow_s=0.0, source=source, note=note))
    return replace(plan, agents=tuple(agents), slow="")


def _filled(template: str, number: int, count: int) -> str:
    return template.replace("{i}", str(number)).replace("{n}", str(count))


def check_stream(text: str, recipe: Recipe) -> None:
    """Raise `UsageError` unless a device with this stream could learn the model."""
    try:
        source = parse_stream(text).create(seed=0, labels=recipe.data.labels)
        schema = source.open(time.monotonic())
    except StreamError as error:
        raise UsageError(f"{error.key}: {error.reason_here}", error.hint) from error
    except DatasetError as error:
        raise UsageError(str(error)) from error
    try:
        if (misfit := misfit_of(schema, task_of(recipe))) is not None:
            detail = misfit[1].replace("task wants", "it takes")
            raise UsageError(f"the stream does not fit the model: {misfit[0]}: {detail}")
    finally:
        source.close()
