"""The thinking: names, desired, decide, status, why. Pure: no time, files or sockets; everything comes in as arguments."""
