"""`python -m mig_manager.daemon`: the daemon."""

from mig_manager.daemon.main import main

main()
