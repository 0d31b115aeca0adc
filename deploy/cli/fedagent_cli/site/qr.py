"""A QR code on the terminal."""

import sys
from contextlib import suppress


def draw_qr(text: str) -> None:
    """Draw a QR code on the terminal, where the package for it is installed."""
    with suppress(ModuleNotFoundError):
        import segno  # noqa: PLC0415 - an optional package

        segno.make(text, error="l").terminal(sys.stdout, border=2, compact=True)
