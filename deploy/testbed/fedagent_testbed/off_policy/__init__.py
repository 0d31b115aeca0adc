"""What another policy would have earned, estimated from a run that explored."""

from .estimates import Choices, Estimate, NoSupportError, Value, choices_of, estimated

__all__ = ["Choices", "Estimate", "NoSupportError", "Value", "choices_of", "estimated"]
