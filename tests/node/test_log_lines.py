"""Log lines that programs read."""

import json
import logging
import sys

from fedagent_node.log_lines import formatter


def test_a_line_is_one_object_whatever_is_logged() -> None:
    try:
        raise ValueError("of\nthree\nlines")  # noqa: TRY301 - what is logged
    except ValueError:
        trace = sys.exc_info()
    record = logging.LogRecord("a.b", logging.WARNING, "f", 1, "%s\n%s", ("one", "two"), trace)
    record.created = 0.25
    line = formatter("json").format(record)
    assert "\n" not in line
    read = json.loads(line)
    assert read.pop("trace").startswith("Traceback")
    assert read == {
        "at": "1970-01-01T00:00:00.250+00:00",
        "level": "warning",
        "logger": "a.b",
        "text": "one\ntwo",
    }
    assert formatter("text").format(record).startswith("1970-01-01")
