"""Errors of the round engine."""

from collections.abc import Collection

from fedagent_coordinator.errors import PolicyError


class NeedsUnmetError(PolicyError):
    """Raised when a policy reads what nobody in a live run can tell it."""

    def __init__(self, policy: str, missing: Collection[str], reported: Collection[str]) -> None:
        super().__init__(policy, missing, reported)
        self.policy = policy
        self.missing = tuple(sorted(missing))
        self.reported = tuple(sorted(reported))

    def __str__(self) -> str:
        if "truth" in self.missing:
            return (
                f"policy {self.policy!r} needs the truth of a round before it is played, which "
                "only the testbed knows; choose another policy"
            )
        if "opinions" in self.missing:
            return (
                f"policy {self.policy!r} needs opinions, which this run does not call for; "
                'set opinions.mode = "report"'
            )
        if "volunteers" in self.missing:
            return (
                f"policy {self.policy!r} needs volunteers, which this run does not call for; "
                'set opinions.mode = "peers"'
            )
        return (
            f"policy {self.policy!r} needs {', '.join(self.missing)}, which no agent reports "
            f"(they report: {', '.join(self.reported) or 'nothing yet'}); choose another policy"
        )
