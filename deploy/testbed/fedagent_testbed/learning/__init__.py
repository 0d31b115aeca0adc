"""What studies learn: federated training of many clients at once, and devices on streams."""
