"""Models that travel as graphs: a program of allow-listed operators, as data (ADR 26)."""

from .codec import decode_program, encode_program
from .spec import Program

__all__ = ["Program", "decode_program", "encode_program"]
