"""The simulated control plane beside the API server: scheduler and workload controllers."""
