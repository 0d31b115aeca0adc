"""The one error of trace files."""


class TraceError(Exception):
    """Raised when a trace file cannot be used: missing, damaged, malformed or too large.

    Attributes:
        file: The file, with ``:member`` for one inside an archive.
        line: Line (or entry of a list) from 1; None where the whole file is at fault.
        problem: What is wrong.
    """

    def __init__(self, file: str, line: int | None, problem: str) -> None:
        super().__init__(file, line, problem)
        self.file = file
        self.line = line
        self.problem = problem

    def __str__(self) -> str:
        where = "" if self.line is None else f", line {self.line}"
        return f"{self.file!r}{where}: {self.problem}"
