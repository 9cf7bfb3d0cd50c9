"""Code blocks of the pages whose interfaces oars.compat offers."""
