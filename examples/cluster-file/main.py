"""Runs tasks on one of two worker groups of a cluster that is defined in a file. Run it with:

oars run -f examples/cluster-file/cluster.yaml examples/cluster-file/main.py
"""

from distributed import Client, get_worker


def where() -> str:
    return str(get_worker().name)


if __name__ == "__main__":
    with Client() as client:
        places = [client.submit(where, resources={"BIG": 1}, pure=False).result() for _ in range(3)]
        print("big tasks ran on", *sorted(set(places)))
