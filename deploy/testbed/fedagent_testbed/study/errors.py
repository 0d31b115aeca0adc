"""Errors of studies."""


class WorkerLostError(Exception):
    """Raised when a process that ran a study was killed, e.g. for want of memory."""

    def __init__(self) -> None:
        super().__init__("a process was killed before its run was over")

    hint = "if memory ran out, take fewer at a time: --jobs 1"

    def __str__(self) -> str:
        return f"{self.args[0]}; {self.hint}"
