"""The command line. One module per command, loaded when it is called; stdout is data, stderr is progress."""
