"""A run as people see it: one projection for status, the page, the report and Python."""
