"""A run as one self-contained HTML page, and as JSON."""
