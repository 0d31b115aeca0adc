"""The site: its authority, who belongs to it, how one joins, and who was revoked."""
