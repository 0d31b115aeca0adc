"""What every process of ours shares: brokers, links, discovery, the data directory."""
