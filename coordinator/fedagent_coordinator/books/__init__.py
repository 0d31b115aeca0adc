"""The books of a coordinator: rounds, money, models, one database and its ledger."""
