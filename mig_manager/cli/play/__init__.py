"""What `mig-manager demo` plays: the stage, the story, and how it is told."""
