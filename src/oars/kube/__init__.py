"""A small asyncio client for the Kubernetes API. Objects are plain dicts. This package imports only `oars.base`."""
