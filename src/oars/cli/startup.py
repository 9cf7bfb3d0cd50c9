"""Run by the Python that `oars shell` opens, in the cluster's environment: connects, greets, and leaves `client`."""
# Plain names here would become the user's variables, hence one function and one `del`.


def _oars_start() -> object:
    import os
    import sys

    import oars

    name, engine = os.environ["OARS_NAME"], os.environ["OARS_ENGINE"]
    theirs = os.environ.pop("OARS_SHELL_STARTUP", "")
    os.environ.pop("PYTHONSTARTUP", None)
    if theirs:
        os.environ["PYTHONSTARTUP"] = theirs
    try:
        client = oars.connect()
    except Exception as error:  # noqa: BLE001 (whatever the engine raises: the shell says it and opens all the same)
        sys.stderr.write(f"error: no connection to {name}: {error}\n`oars why {name}` says more.\n")
        if not sys.stdin.isatty():
            sys.exit(1)
        return None
    if sys.stdin.isatty():
        version = ".".join(map(str, sys.version_info[:3]))
        dashboard = os.environ.get("OARS_DASHBOARD")
        sys.stderr.write(f"{name}: {engine} at {os.environ['OARS_ADDRESS']}, Python {version}\n")
        sys.stderr.write(f"Dashboard: {dashboard}\n" if dashboard else "")
        sys.stderr.write("`client` is connected. Ctrl-D leaves; the cluster stays.\n")
        if theirs and os.path.isfile(theirs):
            with open(theirs) as source:
                exec(compile(source.read(), theirs, "exec"), globals())
    return client


client = _oars_start()
del _oars_start
if not __import__("sys").stdin.isatty():
    exec(compile(__import__("sys").stdin.read(), "<stdin>", "exec"))
