"""A small Kubernetes library: what Oars needs of the API and no more. Objects are plain dicts; nothing here knows what
a cluster of ours is."""
