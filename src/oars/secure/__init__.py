"""Creates the secrets of a cluster: certificates and tokens."""
