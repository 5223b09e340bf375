"""A GPU, a cluster and a kubelet that behave, for the demo and the tests."""
