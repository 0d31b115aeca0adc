"""Write a run as `report.html` and `report.json`."""

import json
from pathlib import Path

from . import page, plots
from .run_report import RunReport

HTML = "report.html"
JSON = "report.json"


def write_report(run: RunReport, folder: Path) -> Path:
    """Write both files into a folder and return the page's path.

    Without matplotlib the page has no plots and says what to install.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = plots.draw_all(run) if plots.available() else []
    html = folder / HTML
    html.write_text(page.render(run, drawn), encoding="utf-8")
    record = json.dumps(run.record(), indent=1)
    (folder / JSON).write_text(record + "\n", encoding="utf-8")
    return html
