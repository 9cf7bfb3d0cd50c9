"""Where clusters run. A place is one folder here and a line in the registry of the front doors."""
