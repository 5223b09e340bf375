"""The page that `kubectl mig web` serves: a fleet of nodes with their GPUs, live."""
