"""Measurements behind the numbers in the README. `python -m benchmarks` runs the `main()` of each."""
