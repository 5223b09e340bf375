"""What the user writes: layout files, layout names, and the target that each gives to every GPU. Pure."""
