"""A cluster over several machines: the head on one, workers on others, each started by hand and joined by a token."""
