"""Interfaces of other projects on Oars: programs written for them run with only the import changed."""
