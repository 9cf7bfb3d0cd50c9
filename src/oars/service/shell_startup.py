"""Run by the Python of `oars shell`, in the cluster's environment: connects to the cluster and leaves `client`, and
`cluster` where all of Oars is installed."""
# Module-level names would become the user's variables, hence one function and one `del`.


def _oars_start() -> dict[str, object]:
    import json
    import os
    import sys

    import oars
    from oars import engines
    from oars.base.text import command

    name, engine = os.environ["OARS_NAME"], os.environ["OARS_ENGINE"]
    user_startup = os.environ.pop("OARS_SHELL_STARTUP", "")
    os.environ.pop("PYTHONSTARTUP", None)
    if user_startup:
        os.environ["PYTHONSTARTUP"] = user_startup
    try:
        client = oars.connect()
    except Exception as error:  # noqa: BLE001 (any error of the engine: the shell opens nevertheless)
        explain = command("why", name, namespace=os.environ.get("OARS_NAMESPACE", ""))
        sys.stderr.write(f"error: cannot connect to {name}: {error}\nRun `{explain}`.\n")
        if not sys.stdin.isatty():
            sys.exit(1)
        return {"client": None}
    found: dict[str, object] = {"client": client}
    location = json.loads(os.environ.pop("OARS_SHELL_LOCATION", "{}"))
    also = " `cluster` is not available: this environment has the engine, but not all of Oars."
    try:
        found["cluster"] = cluster = oars.Cluster.attach(name, **location)
    except ImportError:  # what the control plane needs
        pass
    else:
        import atexit

        atexit.register(cluster.close)
        also = " `cluster` scales it."
    if sys.stdin.isatty():
        version = ".".join(map(str, sys.version_info[:3]))
        dashboard = os.environ.get("OARS_DASHBOARD")
        sys.stderr.write(f"{name}: {engine} at {os.environ['OARS_ADDRESS']}, Python {version}\n")
        sys.stderr.write(f"Dashboard: {dashboard}\n" if dashboard else "")
        sys.stderr.write(
            f"{engines.get(engine).shell.greeting}{also} Press Ctrl-D to exit; the cluster keeps running.\n"
        )
        if user_startup and os.path.isfile(user_startup):
            with open(user_startup) as source:
                exec(compile(source.read(), user_startup, "exec"), globals())
    return found


globals().update(_oars_start())
del _oars_start
if not __import__("sys").stdin.isatty():
    exec(compile(__import__("sys").stdin.read(), "<stdin>", "exec"))
