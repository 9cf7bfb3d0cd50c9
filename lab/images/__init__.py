"""Container images of the lab: plain tars, made without a registry or a container engine."""
