"""Commands that run a role, by hand or as a service."""
