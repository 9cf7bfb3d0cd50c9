"""The loop. Knows engines and places only by their protocols."""
