"""Which keys of ``[learner]`` fit which learner, model and strategy."""

from collections.abc import Container, Iterator

from fedagent_protocol.registry import FOREIGN
from fedagent_task.recipe.client_terms import client_terms
from fedagent_task.recipe.explain import hint_of, show
from fedagent_task.recipe.spec import LEARNERS, MODELS, LearnerSpec, TaskSpec

DESCENT = ("minibatch", "bgd", "sgd")
"""Learners whose steps an optimiser makes."""
_PLAIN = LearnerSpec()
_OPTIMIZER_KEYS = ("optimizer", "momentum", "nesterov", "weight_decay", "betas", "clip_norm")
_SCHEDULE_KEYS = ("schedule", "schedule_rounds", "warmup_rounds", "gamma")
_TORCH_KEYS = ("device", "precision", "threads")

Wrong = tuple[str, str, str]


def name_rules(task: TaskSpec) -> Iterator[Wrong]:
    """Yield a model or a learner that is neither built in nor a package's, and its parameters."""
    for key, spec, name, known in (
        ("model.kind", task.model, task.model.kind, MODELS),
        ("learner.name", task.learner, task.learner.name, LEARNERS),
    ):
        yield from unknown(key, name, known)
        if spec.params and not spec.is_foreign:
            section = key.partition(".")[0]
            why = f"can only be set for a {section} from a package"
            yield f"{section}.params", why, "leave them out"


def unknown(key: str, name: str, known: Container[str]) -> Iterator[Wrong]:
    """Yield a name that is neither built in nor of a package."""
    if name not in known and not FOREIGN.fullmatch(name):
        yield key, f"is not a known name (got {show(name)})", hint_of(key)


def learner_rules(task: TaskSpec) -> Iterator[Wrong]:
    """Yield the keys that do not fit."""
    learner, model = task.learner, task.model
    yield from _optimizer(learner)
    yield from _schedule(learner)
    yield from _where(task)
    yield from _terms(task)
    if learner.name == "strsaga" and learner.rate * model.l2 >= 1:
        why = f"times model.l2 must be < 1 for strsaga (got {learner.rate * model.l2:g})"
        yield "learner.rate", why, "lower learner.rate"


def _given(learner: LearnerSpec, keys: tuple[str, ...]) -> Iterator[str]:
    return (key for key in keys if getattr(learner, key) != getattr(_PLAIN, key))


def _optimizer(learner: LearnerSpec) -> Iterator[Wrong]:
    if learner.name not in DESCENT:
        keys = _OPTIMIZER_KEYS if learner.is_foreign else (*_OPTIMIZER_KEYS, *_SCHEDULE_KEYS)
        for key in _given(learner, keys):
            why = f"does not apply to {learner.name}, which defines its own steps"
            yield f"learner.{key}", why, f"leave it out, or take {', '.join(DESCENT)}"
        return
    kinds = {"momentum": ("sgd",), "nesterov": ("sgd",), "betas": ("adam", "adamw")}
    for key in _given(learner, tuple(kinds)):
        if learner.optimizer not in kinds[key]:
            hint = f"write optimizer = {kinds[key][0]!r}, or leave it out"
            yield f"learner.{key}", f"is not an option of {learner.optimizer}", hint
    if learner.nesterov and not learner.momentum:
        yield "learner.nesterov", "needs a momentum", "write momentum = 0.9"


def _schedule(learner: LearnerSpec) -> Iterator[Wrong]:
    spans = ("step", "cosine", "linear")
    if learner.schedule in spans and learner.schedule_rounds == 0:
        hint = "write the rounds of a step" if learner.schedule == "step" else "write rounds.count"
        yield "learner.schedule_rounds", f"is missing, but {learner.schedule} needs it", hint
    if learner.schedule_rounds and learner.schedule not in spans:
        hint = f"take one of {', '.join(spans)}, or leave it out"
        yield "learner.schedule_rounds", f"has no effect with {learner.schedule}", hint
    if learner.gamma != _PLAIN.gamma and learner.schedule not in ("step", "exponential"):
        hint = "take step or exponential, or leave it out"
        yield "learner.gamma", f"has no effect with {learner.schedule}", hint


def _where(task: TaskSpec) -> Iterator[Wrong]:
    learner, model = task.learner, task.model
    for key in _given(learner, _TORCH_KEYS):
        if not model.is_network:
            why = f"is an option of torch, which does not train a {model.kind} model"
            yield f"learner.{key}", why, "leave it out"
        if learner.backend == "numpy":
            why = "is an option of torch, but learner.backend is numpy"
            yield f"learner.{key}", why, "leave one of them out"
    if learner.precision == "float16" and learner.device in ("cpu", "mps"):
        hint = "write precision = 'bfloat16', or device = 'cuda'"
        yield "learner.precision", f"float16 is not supported on {learner.device}", hint
    if model.kind == "mf":
        why = "does not apply to mf, whose steps update two rows only"
        for key in _given(learner, tuple(key for key in _OPTIMIZER_KEYS if key != "betas")):
            yield f"learner.{key}", why, "leave it out"


def _terms(task: TaskSpec) -> Iterator[Wrong]:
    """What a strategy asks of devices must be what the learner can do."""
    learner, name = task.learner, task.aggregation.name
    terms, key = client_terms(task.aggregation), "aggregation.name"
    if not (terms.mu or terms.control or terms.base_loss or terms.local_steps):
        return
    if learner.name not in DESCENT:
        why = f"{name} needs gradient steps, which {learner.name} does not take"
        yield key, why, "take fedavg, or learner.name = 'minibatch'"
    if task.model.kind == "mf" and (terms.mu or terms.control):
        yield key, f"{name} does not support mf, whose steps update two rows only", "take fedavg"
    plain_sgd = learner.optimizer == "sgd" and not learner.nesterov
    if terms.control and not (plain_sgd and learner.momentum == 0):
        why = "scaffold's control variates are defined for plain sgd only"
        yield key, why, "leave out optimizer, momentum"
    if terms.local_steps and not plain_sgd:
        hint = "take fedavg, or optimizer = 'sgd' without nesterov"
        yield key, "fednova supports only sgd, with momentum or mu", hint
    if terms.local_steps and learner.momentum and terms.mu:
        hint = "leave out learner.momentum, or aggregation.params.mu"
        yield key, "fednova supports momentum or mu, but not both", hint
    if terms.mu and terms.mu * learner.rate >= 1:
        why = f"mu times learner.rate must be < 1 (got {terms.mu * learner.rate:g})"
        yield key, why, "lower learner.rate or mu"
