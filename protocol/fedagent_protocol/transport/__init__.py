"""The only code that touches MQTT, zeroconf, TLS files and brokers."""
