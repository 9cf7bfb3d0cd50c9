"""The thinking: names, desired, decide, status, why. Pure: no time, files or sockets; all comes in as arguments."""
