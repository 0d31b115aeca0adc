"""Lines of text as samples: separators, quotes, decimal commas, names, units, an index.

What is learnt of a file is learnt of its first lines, and anew of another file's.
"""

import csv
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from fedagent_task.errors import TaskError

FIRST_LINES = 20
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}
"""Of those in line 1 the first counts: a comma may stand in numbers."""
_WORDS = {"on": 1.0, "true": 1.0, "off": 0.0, "false": 0.0}


class SampleError(TaskError):
    """Raised when a line or a message is no sample; `why` is a counter's name.

    `column` is what a field is called; what stands in it is said nowhere.
    """

    template = "{column} {reason}"

    why: str
    column: str
    reason: str
    hint: str

    def of(self, line: int) -> str:
        """Return the sentence about a line by its number."""
        return f"line {line}{self.column and f', {self.column},'} {self.reason}"


def number_of(text: str, decimal: str = ".") -> float | None:
    """Return a number, which may be none that is finite; on and true are 1, off and false 0.

    With a decimal comma a point is none: it may stand between thousands.
    """
    text = text.strip()
    if "_" in text or (decimal == "," and "." in text):
        return None
    try:
        return float(text.replace(",", ".") if decimal == "," else text)
    except ValueError:
        return _WORDS.get(text.lower())


@dataclass(slots=True)
class Table:
    """How a file's lines are read."""

    separator: str
    width: int = 0
    names: tuple[str, ...] = ()  # of the columns; empty if the file does not say
    units: tuple[str, ...] = ()  # the line below the names, where that has no number
    first: int = 0  # lines before the first sample
    decimal: str = ""  # a point or a comma; empty until a number shows which

    @classmethod
    def learn(cls, lines: Sequence[str]) -> "Table":
        """Learn from a file's first lines.

        Raises:
            SampleError: There are none, or they have one column only.
        """
        given = [(at, line.strip("\r\n")) for at, line in enumerate(lines) if line.strip()]
        if not given:
            hint = "write one in each line, its label last"
            raise SampleError("bad_columns", "", "has no sample", hint)
        top = given[0][1]
        if "\0" in top[:4]:
            hint = "have it written as UTF-8"
            raise SampleError("bad_columns", "", "is UTF-16 or no text", hint)
        told = top[4:5] if top[:4].lower() == "sep=" and len(given) > 1 else ""
        if told:  # what Excel writes for itself
            del given[0]
            top = given[0][1]
        bare = re.sub('"[^"]*"', "", top)
        separator = told or next((one for one in _SEPARATORS if one in bare), ",")
        table = cls(separator, decimal="." if separator == "," else "")
        below: list[str] = []
        try:
            first = table.fields(top)
        except SampleError as error:
            what = error.of(given[0][0] + 1)
            raise SampleError(error.why, "", what, error.hint) from error
        with suppress(SampleError):  # of a line like others it is said where it is read
            below = table.fields(given[1][1]) if len(given) > 1 else []
        table.width = len(first)
        if table.width < 2:
            what = f"line {given[0][0] + 1} has one column only"
            hint = "separate columns by commas, semicolons, tabs or bars; leave titles out"
            raise SampleError("bad_columns", "", what, hint)
        at = 0
        if _is_header(first, below):
            at, table.names = 1, (first[0].lstrip("#").strip(), *first[1:])
            if _is_text(below) and len(below) == table.width:
                at, table.units = 2, tuple(below)
        table.first = given[at][0] if at < len(given) else given[-1][0] + 1
        return table

    @property
    def columns(self) -> tuple[int, ...]:
        """All but those without a name among others that have one: an index, an empty last."""
        nameless = ("", "Unnamed: 0")
        return tuple(
            at for at in range(self.width) if not (self.names and self.names[at] in nameless)
        )

    def number(self, text: str) -> float | None:
        """Return a field's number, or None; the first decimals of a file say how it writes them."""
        if not self.decimal and (mark := {",", "."}.intersection(text)):
            value = number_of(text, mark.pop() if len(mark) == 1 else ".")
            if value is not None:
                self.decimal = "," if "," in text else "."
            return value
        return number_of(text, self.decimal or ".")

    def fields(self, line: str) -> list[str]:
        """Return what stands in a line; `SampleError`: a quote in it is left open."""
        line = line.strip("\r\n")
        if '"' not in line:
            return [field.strip() for field in line.split(self.separator)]
        form = csv.reader([line], delimiter=self.separator, strict=True, skipinitialspace=True)
        try:
            return [field.strip() for field in next(form)]
        except (csv.Error, StopIteration) as error:
            hint = "write each sample in one line"
            raise SampleError("bad_columns", "", "leaves a quote open", hint) from error

    def numbers(self, fields: Sequence[str], columns: Collection[int]) -> list[float]:
        """Return the numbers in some columns; `SampleError` names what is wrong in which."""
        if len(fields) != self.width:
            what = f"has {len(fields)} columns, not {self.width}"
            by = _SEPARATORS.get(self.separator, repr(self.separator))
            hint = f"separate all lines by {by}, with a decimal point"
            raise SampleError("bad_columns", "", what, hint)
        numbers = []
        for at in columns:
            if (number := self.number(fields[at])) is None:
                hint = "write numbers with a decimal point; csv:PATH,features=a+b names columns"
                raise SampleError("bad_number", f"column {self.name(at)}", "is not a number", hint)
            numbers.append(number)
        return numbers

    def name(self, at: int) -> str:
        """Return what a column is called, with its unit."""
        if not self.names:
            return str(at)
        unit = self.units[at] if self.units else ""
        return f"{self.names[at]!r}{unit and f' in {unit}'}"


def _is_header(first: Sequence[str], below: Sequence[str]) -> bool:
    """Tell whether the first line has names, which may be numbers."""
    counted = [field for field in first if field]
    if len(first) > 2 and counted == [str(number) for number in range(len(counted))]:
        return True  # what pandas calls columns that have no names
    return _is_text(first) or any(
        name and _is_text([name]) and number_of(field) is not None
        for name, field in zip(first, below, strict=False)
    )


def _is_text(row: Sequence[str]) -> bool:
    """Tell whether a line has words alone, as one of names or units."""
    return any(row) and all(number_of(one) is None and number_of(one, ",") is None for one in row)
