"""The command line: parses, calls the service, prints."""
