#!/opt/fedagent/bin/python
"""End with 0 while this container's fedagent answers."""

import sys
from urllib.error import URLError
from urllib.request import urlopen

try:
    with urlopen("http://127.0.0.1:9100/metrics", timeout=4) as page:
        sys.exit(b"fedagent_info" not in page.read())
except (OSError, URLError) as error:
    sys.exit(f"no answer: {error}")
