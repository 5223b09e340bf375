"""Whether mig-manager is in order in a cluster: a snapshot in, checks out. Only `gather` asks the API server."""
