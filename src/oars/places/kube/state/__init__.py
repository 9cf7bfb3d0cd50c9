"""What Kubernetes holds of a cluster: cache, root object, owned objects, Secrets."""
