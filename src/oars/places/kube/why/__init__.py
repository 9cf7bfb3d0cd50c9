"""Explain failures on Kubernetes: from pod conditions, events, logs and API errors to causes with hints."""
