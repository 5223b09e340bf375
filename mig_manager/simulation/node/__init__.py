"""The simulated node: the kubelet, its pods, their containers and their devices."""
