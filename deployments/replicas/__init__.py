"""Access to the engine replicas: `client.py` calls them, `failover.py` resumes lost requests."""
