"""Oars: Dask, Ray and Mars clusters on a laptop, on bare hosts and on Kubernetes."""
