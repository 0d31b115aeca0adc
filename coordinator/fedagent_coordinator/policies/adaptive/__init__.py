"""`adaptive`: the policy, and the forecast that it averages from experts and filters."""

from .policy import AdaptivePolicy

__all__ = ["AdaptivePolicy"]
