"""Packages of extras that a command may lack here."""

import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fedagent_protocol.extras import how_to_add

from .errors import MissingError


def need(package: str, extra: str = "", *, hint: str = "") -> None:
    """Raise `MissingError` where a package is not installed; the extra brings it."""
    if find_spec(package) is None:
        raise MissingError(
            f"the {package} package is not installed", hint or how_to_add(extra or package)
        )


def optional(module: str, package: str, extra: str = "") -> Any:
    """Return a module that needs a package of an extra.

    Raises:
        MissingError: The package is not installed.
    """
    need(package, extra)
    return import_module(module)


def draw_qr(text: str) -> None:
    """Draw a QR code on the terminal, where the package for it is installed."""
    with suppress(MissingError):
        code = optional("segno", "segno").make(text, error="l")
        code.terminal(sys.stdout, border=2, compact=True)
