"""The Python face: Cluster, AsyncCluster, and what the command line stands on."""
