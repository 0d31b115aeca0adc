"""What a task's strategy goes by: the roles of its tensors, and the most steps of an order."""

from fedagent_task.program import decode_program
from fedagent_task.recipe.spec import LearnerSpec, ModelSpec

from .sums import ALL_TRAIN, Rules


def rules_of(model: ModelSpec) -> Rules:
    """Return how the tensors of a model are combined; built-in kinds have parameters only.

    Raises:
        TaskFormatError: Its program cannot be read.
    """
    if not model.program:
        return ALL_TRAIN
    program = decode_program(model.program)
    train, mean, latest = (
        frozenset(tensor.name for tensor in program.of_roles(role))
        for role in ("train", "mean", "latest")
    )
    return Rules(train, mean, latest)


def most_steps(learner: LearnerSpec, iterations: int) -> float:
    """Return the most steps of the optimiser in a round, as its momentum counts them.

    `iterations` are those of the order; 0 leaves them to the learner.
    """
    passes = max(iterations, 1) if iterations else learner.passes
    batches = -(-learner.buffer // learner.batch)
    return passes * batches * learner.steps / (1.0 - learner.momentum)
