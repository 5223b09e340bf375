"""From what is to what should be, in the fewest steps. Pure: no I/O, no clock, no NVML, no Kubernetes."""
