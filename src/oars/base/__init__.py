"""Foundations of all packages: errors, logging, settings, codec, rate limiting. Knows nothing about clusters."""
