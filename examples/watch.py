"""Read a running coordinator's page as a program does: python watch.py [ADDRESS]."""

import json
import sys
from urllib.request import urlopen


def read(page, path):
    """Return one answer of /api; docs/coordinator.md has the paths."""
    with urlopen(f"{page.rstrip('/')}/api/{path}") as answer:
        return json.load(answer)


if __name__ == "__main__":
    page = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:7428"
    field = read(page, "field")
    for one in field["rounds"]:  # what is 0 or unknown is left out
        print(f"round {one['round']}: {one.get('in_time', 0)} of {one.get('ordered', 0)} in time")
    for one in field["devices"]:
        print(f"{one['name']}: {one.get('paid_micro', 0) / 1e6:g} credits", one.get("reason", ""))
    for one in field["alarms"]:
        print(one)
