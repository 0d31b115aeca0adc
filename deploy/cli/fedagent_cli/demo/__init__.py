"""A whole federation on this machine, to watch and to read afterwards."""
