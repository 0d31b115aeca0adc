"""What a task's strategy goes by: the roles of its tensors, and the most steps of an order."""

from fedagent_task.spec import LearnerSpec, ModelSpec

from .sums import ALL_TRAIN, Rules


def rules_of(model: ModelSpec) -> Rules:  # noqa: ARG001 - built-in kinds train every tensor
    """Return how the tensors of a model are combined."""
    return ALL_TRAIN


def most_steps(learner: LearnerSpec, iterations: int) -> float:
    """Return the most steps of the optimiser in a round, as its momentum counts them.

    `iterations` are those of the order; 0 leaves them to the learner.
    """
    passes = max(iterations, 1) if iterations else learner.passes
    batches = -(-learner.buffer // learner.batch)
    return passes * batches * learner.steps / (1.0 - learner.momentum)
