"""Programs that are measured. Each runs in its own process and prints seconds as JSON, without the time of imports."""

START_OARS = """
import json, sys, time
from oars import Cluster
from oars.client import cluster, local  # imported before the measurement, as in a notebook
engine, workers = sys.argv[1], int(sys.argv[2])
start = time.perf_counter()
c = Cluster(engine, workers=workers, cpu=1, memory="1Gi", timeout="5m")
ready = time.perf_counter() - start
start = time.perf_counter()
c.close()
print(json.dumps({"start": ready, "stop": time.perf_counter() - start}))
"""

START_DASK = """
import json, time
from distributed import LocalCluster
if __name__ == "__main__":
    start = time.perf_counter()
    c = LocalCluster(n_workers=4, threads_per_worker=1, memory_limit="1GiB", dashboard_address="127.0.0.1:0")
    c.wait_for_workers(4)
    ready = time.perf_counter() - start
    start = time.perf_counter()
    c.close()
    print(json.dumps({"start": ready, "stop": time.perf_counter() - start}))
"""

START_RAY_NODES = """
import json, time
from ray.cluster_utils import Cluster
start = time.perf_counter()
c = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": True, "dashboard_port": 0})
for _ in range(3):
    c.add_node(num_cpus=1, wait=False)
c.wait_for_nodes()
ready = time.perf_counter() - start
start = time.perf_counter()
c.shutdown()
print(json.dumps({"start": ready, "stop": time.perf_counter() - start}))
"""

START_RAY_INIT = """
import json, time
import ray
start = time.perf_counter()
ray.init(address="local", num_cpus=1, include_dashboard=True, log_to_driver=False)
ready = time.perf_counter() - start
start = time.perf_counter()
ray.shutdown()
print(json.dumps({"start": ready, "stop": time.perf_counter() - start}))
"""

START_MARS = """
import json, time
import xorbits
if __name__ == "__main__":
    start = time.perf_counter()
    xorbits.init(n_worker=2, n_cpu=2)
    ready = time.perf_counter() - start
    start = time.perf_counter()
    xorbits.shutdown()
    print(json.dumps({"start": ready, "stop": time.perf_counter() - start}))
"""

# Oars' executor and the engine's own API in turn on one cluster, so that both have the same noise.
THROUGHPUT = """
import json, os, sys, time
import oars
TASKS, ROUNDS = int(sys.argv[1]), int(sys.argv[2])
def nothing(_): return None

def native_dask():
    from distributed import Client
    client = Client()
    return lambda: client.gather(client.map(nothing, range(TASKS), pure=False))

def native_ray():
    import ray
    ray.init(log_to_driver=False, ignore_reinit_error=True)
    task = ray.remote(nothing)
    return lambda: ray.get([task.remote(n) for n in range(TASKS)])

def native_mars():
    import xorbits._mars.remote as mr
    oars.connect()
    return lambda: mr.ExecutableTuple([mr.spawn(nothing, args=(n,)) for n in range(TASKS)]).execute().fetch()

if __name__ == "__main__":
    native = {"dask": native_dask, "ray": native_ray, "mars": native_mars}[os.environ["OARS_ENGINE"]]()
    executor = oars.executor()
    times = {"native": [], "oars": []}
    list(executor.map(nothing, range(50)))
    native()
    for _ in range(ROUNDS):
        start = time.perf_counter(); native(); times["native"].append(time.perf_counter() - start)
        start = time.perf_counter(); list(executor.map(nothing, range(TASKS)))
        times["oars"].append(time.perf_counter() - start)
    print(json.dumps(times))
"""
