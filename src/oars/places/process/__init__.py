"""Members as operating-system processes: one place for every kind of machine (see machine.Machine)."""
