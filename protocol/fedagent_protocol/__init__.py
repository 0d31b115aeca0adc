"""The wire between agents, edges and coordinator."""

VERSION = "0.1.0"
"""The release, as `pyproject.toml` has it: asking the installed package costs a device 2 MB."""
SOFTWARE = f"fedagent {VERSION}"
"""How every role names its software to its peers."""
