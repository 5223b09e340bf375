"""What the GPU Operator runs on the simulated node."""

NAMESPACE = "gpu-operator"
