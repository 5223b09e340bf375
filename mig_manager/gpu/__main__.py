"""Runs the worker process: `python -m mig_manager.gpu FD FD`."""

from mig_manager.gpu.serve import main

main()
