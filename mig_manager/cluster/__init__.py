"""The only room that knows the Kubernetes API."""
