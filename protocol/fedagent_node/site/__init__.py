"""A site: its authority and certificates, how a role joins, and TLS between its members."""
