"""The only room that knows NVML."""
