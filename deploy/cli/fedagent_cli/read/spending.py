"""What a device's updates have cost in privacy, for people to read."""

from fedagent_task.privacy.accountant import epsilon_spent, is_installed
from fedagent_task.recipe.spec import Recipe
from fedagent_task.recipe.text import task_of


def epsilon_of(recipe: Recipe | None, released: int) -> float | None:
    """Return the epsilon of so many updates; None: none is counted, or not on this machine."""
    if recipe is None or not recipe.privacy.wanted or not is_installed():
        return None
    privacy = task_of(recipe).privacy
    return epsilon_spent(privacy, min(released, privacy.releases))


def epsilon_text(recipe: Recipe | None, released: int) -> str:
    """Return it with what a device may spend; without an accountant, in updates; or nothing."""
    if recipe is None or not recipe.privacy.wanted:
        return ""
    privacy = task_of(recipe).privacy
    spent = epsilon_of(recipe, released)
    if spent is None:
        return f"{min(released, privacy.releases)} of {privacy.releases} updates"
    return f"{spent:.3g} of {privacy.epsilon:g}"
