"""`fedagent service`: a role as a systemd service."""
