"""The edge aggregator: collects updates until a deadline and averages them."""
