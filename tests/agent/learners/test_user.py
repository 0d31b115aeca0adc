"""Models and training code of somebody else's package, and what becomes of its errors."""

import logging
import time
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import numpy as np
import pytest

from fedagent_agent.learners.user import Batches, NumpyModel, TrainContext, trainer
from fedagent_agent.trainer.training import Trainer
from fedagent_protocol import registry
from fedagent_task.errors import RecipeError, TaskFormatError
from fedagent_task.models import create as create_model
from fedagent_task.models.generalised_linear import Softmax
from fedagent_task.recipe.spec import ModelSpec
from tests.fakes.trainer_bench import TrainerBench, demo

STREAM = "digits:start=80,rate=0.001"
SEEN: list[TrainContext] = []


@trainer
def plain(model: NumpyModel, batches: Batches, ctx: TrainContext) -> None:
    """Do what `minibatch` does."""
    SEEN.append(ctx)
    for _ in range(ctx.iterations):
        for x, y in batches:
            loss, gradient = model.loss_and_gradient(x, y)
            for name, slope in gradient.items():
                model.weights[name] -= np.float32(ctx.rate) * slope
    ctx.report(loss=loss, accuracy=0.5)


def fails(model: NumpyModel, batches: Batches, ctx: TrainContext) -> None:
    for x, y in batches:
        raise ValueError(f"a secret sample: {x} {y} {model} {ctx}")


def reports_nonsense(model: NumpyModel, batches: Batches, ctx: TrainContext) -> None:
    del model, batches
    ctx.report(loss=float("nan"))


def reshapes(model: NumpyModel, batches: Batches, ctx: TrainContext) -> None:
    del batches, ctx
    model.weights["bias"] = np.zeros(3, np.float32)


def diverges(model: NumpyModel, batches: Batches, ctx: TrainContext) -> None:
    del batches, ctx
    model.weights["bias"][:] = np.inf


def waits(model: NumpyModel, batches: Batches, ctx: TrainContext) -> None:
    del model, batches
    until = time.monotonic() + 20
    while not ctx.should_stop() and time.monotonic() < until:
        time.sleep(0.001)


class Net(Softmax):
    """A package's own model."""


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution `My_Package` with the functions above."""
    names = {
        "fedagent.learners": (
            "plain",
            "fails",
            "reports_nonsense",
            "reshapes",
            "diverges",
            "waits",
            "gone",
        ),
        "fedagent.models": ("Net", "gone"),
    }

    def installed(group: str) -> tuple[EntryPoint, ...]:
        made = [EntryPoint(name, f"{__name__}:{name}", group) for name in names.get(group, ())]
        for one in made:
            vars(one).update(dist=SimpleNamespace(name="My_Package"))
        return tuple(made)

    monkeypatch.setattr(registry, "installed", installed)
    SEEN.clear()


def _opened(bench: TrainerBench, name: str, *sets: str) -> TrainerBench:
    keys = ("learner.batch=20", "learner.passes=3", "learner.rate=0.05", *sets)
    return bench.opened(demo(f"learner.name={name}", *keys), STREAM)


def test_a_packages_loop_trains_as_minibatch_does(
    bench: TrainerBench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    _opened(bench, "minibatch").trained(round=4)
    ours = bench.update()
    reply = _opened(bench, "my-package:plain").trained(round=4)
    assert reply.stats.num_samples == 80
    assert reply.stats.loss > 0
    theirs = bench.update()
    assert all(np.linalg.norm(theirs[n] - ours[n]) < 0.2 * np.linalg.norm(ours[n]) for n in ours)
    (ctx,) = SEEN
    assert (ctx.round, ctx.iterations, ctx.device, ctx.rate) == (4, 3, "cpu", 0.05)
    assert "round 4: the task reports accuracy=0.5, loss=" in caplog.text


@pytest.mark.parametrize(
    ("name", "reason", "detail"),
    [
        ("fails", "error", "ValueError at test_user.py:"),
        ("reports_nonsense", "error", "ValueError at test_user.py:"),
        ("reshapes", "error", "left 'bias' in another shape"),
        ("diverges", "diverged", "not finite"),
    ],
)
def test_its_errors_are_one_line_with_its_place_and_nothing_of_a_sample(
    name: str, reason: str, detail: str, bench: TrainerBench
) -> None:
    failed = _opened(bench, f"my-package:{name}").failed(reason)
    assert detail in failed.detail
    assert "secret" not in failed.detail
    assert "\n" not in failed.detail
    assert not bench.out.exists()
    _opened(bench, "my-package:plain").trained()


def test_a_loop_that_asks_stops_when_its_round_is_given_up(bench: TrainerBench) -> None:
    asked = iter([False, False, True])
    bench.on(Trainer(lambda _job, _wait: next(asked, True)))
    _opened(bench, "my-package:waits").failed("cancelled")


def test_a_loop_that_asks_stops_at_the_load_limit(bench: TrainerBench) -> None:
    _opened(bench, "my-package:waits").trained(load_limit_s=0.05)


def test_a_packages_model_is_learnt(bench: TrainerBench) -> None:
    bench.opened(demo("model.kind=my-package:Net", "learner.name=my-package:plain"), STREAM)
    assert bench.trained().stats.num_samples == 80
    bench.opened(demo("model.kind=my-package:Net", "model.params={ depth = 2 }"), STREAM)
    assert bench.trained().stats.num_samples == 80
    told = create_model(demo("model.kind=my-package:Net", "model.params={ depth = 2 }").model)
    assert isinstance(told, Net)
    assert told.spec.params == {"depth": 2}


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("your-package:train", "install the package your-package"),
        ("my-package:train", "install the package my-package"),
        ("my-package:gone", "cannot be imported"),
    ],
)
def test_what_is_missing_is_refused_with_the_mend(
    name: str, detail: str, bench: TrainerBench
) -> None:
    recipe = demo(f"learner.name={name}")
    refused = bench.refused(recipe, STREAM)
    assert refused.startswith("learner.name")
    assert detail in refused
    with pytest.raises(TaskFormatError, match=detail):
        create_model(ModelSpec(kind=name, features=4, classes=2))


@pytest.mark.parametrize(
    ("sets", "key"),
    [
        (("learner.name=os:",), "learner.name"),
        (("learner.name=minibatchh",), "learner.name"),
        (("learner.name=My_Package:train",), "learner.name"),
        (("model.kind=a/b:c",), "model.kind"),
        (("learner.params={x=1}",), "learner.params"),
        (("learner.name=my-package:plain", "learner.momentum=0.9"), "learner.momentum"),
        (("learner.name=my-package:plain", "aggregation.name=scaffold"), "aggregation.name"),
    ],
)
def test_names_that_none_can_have_and_keys_that_do_not_fit_are_refused(
    sets: tuple[str, ...], key: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        demo(*sets)
    assert caught.value.key == key
    assert caught.value.hint


def test_a_function_of_another_form_is_no_trainer() -> None:
    with pytest.raises(TypeError, match="model, batches, ctx"):
        trainer(lambda _model: None)  # type: ignore[arg-type, misc] # the mistake
