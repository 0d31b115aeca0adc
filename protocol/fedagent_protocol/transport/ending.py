"""The last words of a role that cannot go on: a line for people, an object for programs."""

import json
import sys
from collections.abc import Iterable
from contextlib import suppress

ExitCodes = Iterable[tuple[type[BaseException], int]]


def in_two(error: BaseException) -> tuple[str, str]:
    """Return what is wrong, and the hint: our errors say ``problem; hint``."""
    text = " ".join(str(error).split()) or type(error).__name__
    hint = getattr(error, "hint", None)
    if isinstance(hint, str):
        return text.removesuffix(f"; {hint}"), hint
    problem, parted, hint = text.rpartition("; ")
    return (problem, hint) if parted else (text, "")


def end(role: str, error: BaseException, codes: ExitCodes, *, as_json: bool) -> int:
    """Say what ended a role, and return its exit code.

    Args:
        role: What the line begins with.
        error: Of a class in `codes`.
        codes: The first class that fits decides.
        as_json: Whether standard output carries JSON lines; this is the last.
    """
    code = next(code for kind, code in codes if isinstance(error, kind))
    problem, hint = in_two(error)
    sys.stderr.write(f"fedagent {role}: {problem}{'; ' if hint else ''}{hint}\n")
    if as_json:
        last = {"error": problem, "hint": hint, "exit_code": code}
        # Whoever read the events may be gone.
        with suppress(OSError):
            sys.stdout.write(json.dumps(last, separators=(",", ":")) + "\n")
            sys.stdout.flush()
    return code
