"""mig-manager: a node-level MIG manager for Kubernetes."""

__version__ = "0.1.0"
