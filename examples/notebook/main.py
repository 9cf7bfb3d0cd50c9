"""A notebook as a program: creates a cluster, connects the engine's own client and scales. Run it with a Python that
has the engine (pip install 'oars[dask]'):

    python examples/notebook/main.py
"""

from oars import Cluster

if __name__ == "__main__":
    with Cluster("dask", workers=2, memory="1Gi") as cluster:
        client = cluster.client()
        held = client.map(lambda n: n * n, range(100))
        cluster.scale(3)
        cluster.wait(3)
        cluster.scale(1)  # the results of removed workers are moved first
        cluster.wait()
        print("sum", sum(client.gather(held)), "workers", cluster.status().ready)
