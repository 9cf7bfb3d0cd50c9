"""Secrets of a cluster: certificates and tokens, made here and kept in files only their owner can read."""
