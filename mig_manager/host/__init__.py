"""What lies on the host outside Kubernetes: the driver's files and commands."""
