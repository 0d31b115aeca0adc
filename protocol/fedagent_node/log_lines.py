"""Log lines: text for people, or one JSON object each for what collects them."""

import json
import logging
from datetime import UTC, datetime

from .settings import LogFormat

TEXT = "%(asctime)s %(levelname)s %(message)s"


class JsonLines(logging.Formatter):
    """Log lines as one JSON object each: ``at`` (UTC), ``level``, ``logger``, ``text``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "at": at,
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, separators=(",", ":"))


def formatter(kind: LogFormat) -> logging.Formatter:
    """Return what makes the lines."""
    return JsonLines() if kind == "json" else logging.Formatter(TEXT)
