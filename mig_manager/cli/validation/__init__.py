"""What `mig-manager validate` finds in layout files, and how it is printed."""
