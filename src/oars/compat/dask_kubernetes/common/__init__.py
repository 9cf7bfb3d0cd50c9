"""Pod templates and credentials, under the module names of dask-kubernetes."""
