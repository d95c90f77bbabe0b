"""The way to the engine replicas: `client.py` calls them, `failover.py` survives their loss."""
