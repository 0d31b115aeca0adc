"""Readers for the options in a stream's text; each error names the option and the hint."""

import difflib
import math

from .errors import StreamSpecError

EXAMPLES = "digits:labels=3+7,rate=20, csv:PATH,label=last or mqtt://HOST:PORT/TOPIC?features=a,b"


def options_of(text: str, known: tuple[str, ...]) -> dict[str, str]:
    """Return ``name=value`` pairs between commas, all of known names."""
    options: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        name = name.strip()
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise StreamSpecError(name[:40] or "stream", "is no option here", hint)
        if not equals or not value.strip():
            raise StreamSpecError(name, "has no value", f"write {name}=...")
        options[name] = value.strip()
    return options


def whole(key: str, text: str, least: int, most: int) -> int:
    """Return a whole number of a range."""
    if not (text.isascii() and text.isdigit()) or not least <= int(text[:20]) <= most:
        example = {"labels": "labels=3+7", "part": "part=1/4"}.get(key, f"{key}={least + 50}")
        raise StreamSpecError(
            key, f"{text[:40]!r} is no number from {least} to {most}", f"write {example}"
        )
    return int(text)


def number(key: str, text: str, hint: str = "") -> float:
    """Return a finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise StreamSpecError(key, f"{text[:40]!r} is no number", hint or f"write {key}=0.5")
    return value


def positive(key: str, options: dict[str, str], default: float, most: float = 1e6) -> float:
    """Return a number over 0."""
    text = options.get(key, str(default))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= most:
        raise StreamSpecError(key, f"{text[:40]!r} is no number over 0", f"write {key}=20")
    return value


def names(text: str) -> tuple[str, ...]:
    """Return names between plus signs."""
    return tuple(item.strip() for item in text.split("+") if item.strip())


def numbers(key: str, text: str) -> tuple[float, ...]:
    """Return numbers between plus signs."""
    return tuple(number(key, item) for item in names(text))


def flag(key: str, options: dict[str, str]) -> bool:
    """Return whether an option is 1; 0 and absence are no."""
    text = options.get(key, "0")
    if text not in ("0", "1"):
        raise StreamSpecError(key, f"{text[:40]!r} is neither 0 nor 1", f"write {key}=1")
    return text == "1"


def buffer(options: dict[str, str]) -> int:
    """Return the number of samples to keep between two takes."""
    return whole("buffer", options.get("buffer", "4096"), 1, 10**6)


def need(text: str, key: str) -> str:
    """Return text that must be there."""
    if not text.strip():
        raise StreamSpecError(key, "has no value", f"write {EXAMPLES}")
    return text.strip()
