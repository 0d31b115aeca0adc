"""Lines of text as samples: separators, quotes, decimal commas, names, units, an index.

What is learnt of a file is learnt of its first lines, and anew of another file's.
"""

import csv
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fedagent_task.errors import TaskError

FIRST_LINES = 20
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_WORDS = {"on": 1.0, "true": 1.0, "off": 0.0, "false": 0.0}


class TableError(TaskError):
    """Raised when lines are no samples; `column` is what it is called, never what stands there."""

    template = "{column} {reason}"

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


def fields_of(line: str, separator: str) -> list[str]:
    """Return what stands between separators, without quotes; `ValueError`: one stays open."""
    if '"' not in line:
        return [field.strip() for field in line.split(separator)]
    try:
        row = next(csv.reader([line], delimiter=separator, strict=True, skipinitialspace=True))
    except (csv.Error, StopIteration) as error:
        raise ValueError("leaves a quote open") from error
    return [field.strip() for field in row]


@dataclass(slots=True)
class Table:
    """How a file's lines are read.

    Attributes:
        names: What the columns are called; empty if the file does not say.
        units: The line below the names, where that has no number; else empty.
        first: Lines before the first sample.
        decimal: A point or a comma; empty until a number shows which.
    """

    separator: str
    width: int
    names: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    first: int = 0
    decimal: str = ""

    @classmethod
    def learn(cls, lines: Sequence[str], wanted: Collection[str] = ()) -> "Table":
        """Learn from a file's first lines.

        `wanted` are names that the first must have if it has names.

        Raises:
            TableError: There are none, or they have one column only.
        """
        given = [(at, line.strip("\r\n")) for at, line in enumerate(lines) if line.strip()]
        if not given:
            raise TableError("", "has no sample", "write one in each line, its label last")
        told = ""
        if given[0][1][:4].lower() == "sep=" and len(given) > 1:
            told = given.pop(0)[1][4:5]  # what Excel writes for itself
        rows = _rows([line for _, line in given], told)
        if rows is None:
            hint = "separate columns by commas, semicolons, tabs or bars"
            raise TableError("", f"line {given[0][0] + 1} has one column only", hint)
        separator, found = rows
        table = cls(separator, len(found[0]), decimal="." if separator == "," else "")
        at = 0
        if _is_header(found, wanted):
            at, names = 1, found[0]
            table.names = (names[0].lstrip("#").strip(), *names[1:])
            if len(found) > 1 and is_text(found[1]) and len(found[1]) == table.width:
                at, table.units = 2, tuple(found[1])
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
        """Return what stands in a line; `TableError`: a quote in it is left open."""
        try:
            return fields_of(line.strip("\r\n"), self.separator)
        except ValueError as error:
            raise TableError("", str(error), "write each sample in one line") from error

    def numbers(self, fields: Sequence[str], columns: Collection[int]) -> list[float]:
        """Return the numbers in some columns; `TableError` names what is wrong in which."""
        if len(fields) != self.width:
            what = f"has {len(fields)} columns, not {self.width}"
            by = _SEPARATORS.get(self.separator, repr(self.separator))
            raise TableError("", what, f"separate all lines by {by}, with a decimal point")
        numbers = []
        for at in columns:
            if (number := self.number(fields[at])) is None:
                hint = "write numbers with a decimal point; csv:PATH,features=a+b names columns"
                raise TableError(f"column {self.name(at)}", "is not a number", hint)
            numbers.append(number)
        return numbers

    def name(self, at: int) -> str:
        """Return what a column is called, with its unit."""
        if not self.names:
            return str(at)
        unit = self.units[at] if self.units else ""
        return f"{self.names[at]!r}{unit and f' in {unit}'}"


def _rows(lines: Sequence[str], told: str) -> tuple[str, list[list[str]]] | None:
    """Return the separator by which most fields are numbers, and the fields; None: it has none."""
    found: tuple[tuple[float, int], str, list[list[str]]] | None = None
    for separator in (told,) if told else _SEPARATORS:
        rows = [_try_fields(line, separator) for line in lines[:FIRST_LINES]]
        if (width := len(rows[0])) < 2:
            continue
        decimals = (".", ",") if separator != "," else (".",)
        numbers = sum(
            any(number_of(field, mark) is not None for mark in decimals)
            for row in rows
            if len(row) == width
            for field in row
        )
        rank = numbers / (width * len(rows)), width
        if found is None or rank > found[0]:
            found = rank, separator, rows
    return None if found is None else found[1:]


def _try_fields(line: str, separator: str) -> list[str]:
    try:
        return fields_of(line, separator)
    except ValueError:
        return []


def _is_header(rows: Sequence[Sequence[str]], wanted: Collection[str]) -> bool:
    """Tell whether the first line has names, which may be numbers."""
    first = rows[0]
    if set(wanted) & set(first) or is_text(first):
        return True
    counted = [field for field in first if field]
    if len(first) > 2 and counted == [str(number) for number in range(len(counted))]:
        return True  # what pandas calls columns that have no names
    below = rows[1] if len(rows) > 1 else ()
    return any(
        name and number_of(name, ",") is number_of(name) is None and number_of(field) is not None
        for name, field in zip(first, below, strict=False)
    )


def is_text(row: Sequence[str]) -> bool:
    """Tell whether a line has words alone, as one of names or units."""
    return any(row) and all(number_of(one) is None and number_of(one, ",") is None for one in row)
