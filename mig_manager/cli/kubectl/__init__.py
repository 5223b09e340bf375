"""`kubectl mig`: what administrators, people on call and owners of pods look at, from outside of the nodes."""
