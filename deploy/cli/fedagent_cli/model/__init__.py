"""Commands about models: kept ones, exported ones, and tasks."""
