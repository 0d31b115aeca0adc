"""A site: its authority and certificates, how a role joins, and TLS between its members."""

FOLDER = "site"
"""In a data directory: what a role holds of its site."""
CERT_FILE = "cert.pem"
MAX_DER_BYTES = 2048
"""Of a certificate."""
