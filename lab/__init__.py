"""A real Kubernetes on one small machine, for tests: see docs/lab.md."""
