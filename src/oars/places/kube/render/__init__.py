"""Desired state → Kubernetes objects. Pure."""
