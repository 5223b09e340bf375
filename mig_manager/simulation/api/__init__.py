"""The simulated API server, by noun; `mig_manager.simulation.apiserver` is its front door."""
