"""How good a run's models are, in words; what they are evaluated by is `fedagent_task.measures`."""

from collections.abc import Iterable, Mapping, Sequence

from fedagent_task.measures import HELD_OUT, IN_TRAINING, Measure, few

from .output import number_text

LABELS = {"rmse": "error", "train_error": "error", "train_loss": "loss", "device_score": "score"}
"""What a line about it begins with, where that is not its key."""
UNTOLD = "not measured: where neighbours decide, devices tell neither score nor loss"
NOT_HELD_OUT = "not measured on held-out samples (evaluation.dataset)"
Metrics = Mapping[str, float]


def metric_line(measures: Sequence[Measure], metrics: Metrics) -> tuple[str, str]:
    """Return a label and one line on how good a model is."""
    if not measures:
        return "accuracy", UNTOLD
    by = measures[0]
    label = LABELS.get(by.key, by.key)
    known = [one for one in measures if one.key in metrics]
    if by.where == HELD_OUT:
        known = [one for one in known if one.where != IN_TRAINING]
    if not known:
        return label, "not measured yet"
    line = ", ".join(_with_unit(one, metrics[one.key], by) for one in known)
    return label, f"{line}; {NOT_HELD_OUT}" if by.where == IN_TRAINING else line


def columns(measures: Sequence[Measure], rows: Iterable[Metrics]) -> tuple[Measure, ...]:
    """Return what a table shows: what is evaluated by, and the few others that were measured."""
    listed = list(rows)
    return tuple(
        one
        for one in few(measures)
        if one is measures[0] or any(one.key in metrics for metrics in listed)
    )


def _with_unit(one: Measure, value: float, by: Measure) -> str:
    number = number_text(value)
    match one.key:
        case "rmse" | "mae":
            return f"{number} ({one.key})"
        case "device_score":
            return f"{number} on the devices' new samples"
        case _ if one is not by:
            return f"{one.word if by.where != one.where else 'loss'} {number}"
        case _:
            return f"{number} in training" if one.where == IN_TRAINING else number
