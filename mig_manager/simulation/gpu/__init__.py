"""What stands behind the simulated NVML: GPU models, the state file, and the rules of hardware and driver."""
