"""mig-manager: a node-level MIG manager for Kubernetes."""
