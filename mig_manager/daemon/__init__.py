"""The daemon: what it watches, the order of a run, and what it says on the Node."""
