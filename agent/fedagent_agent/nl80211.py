"""Print every Wi-Fi interface with its link, as JSON: ``python -m fedagent_agent.nl80211``.

The library takes 25 MB, which an agent does not keep.
"""

import sys

import msgspec
from pyroute2.iwutil import IW
from pyroute2.netlink.exceptions import NetlinkError

from .wifi import radios_of

if __name__ == "__main__":
    with IW() as wireless:
        radios = radios_of(wireless, NetlinkError)
    sys.stdout.write(msgspec.json.encode(radios).decode() + "\n")
