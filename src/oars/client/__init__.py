"""Cluster and AsyncCluster, and the backends behind them."""
