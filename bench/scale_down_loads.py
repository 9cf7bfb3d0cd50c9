"""The loads of bench/scale_down.py. Each runs as a driver with the engine's own API until it reads "stop", then prints
what it counted as JSON. Its argument is a file, to which every task appends its name."""

COMMON = """
import json, os, sys, threading, time
FILE, SIZE, CHAINS = sys.argv[1], 200_000, 12
stopped, counts = threading.Event(), {"calls": 0, "failed": 0, "lost": 0}

def note(name):
    with open(FILE, "a") as stream:
        stream.write(name + "\\n")

def first(note, name, number):
    note(name + "/first"); time.sleep(0.02)
    return bytes([number]) * SIZE

def second(note, name, data):
    note(name + "/second"); time.sleep(0.02)
    return data[::-1]

def third(note, name, data):
    note(name + "/third")
    return len(data)

def attempt(kind, call, right):
    '''Count a call of the user: `kind` grows if it raises or returns something else.'''
    counts["calls"] += 1
    try:
        if right(call()):
            return
        error = "wrong result"
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    counts[kind] += 1
    print(kind, str(error)[:200].replace("{", "("), flush=True)

def repeat(burst):
    print("running", flush=True)
    number = 0
    while not stopped.is_set():
        number += 1
        try:
            burst(number)
        except Exception as error:
            counts["calls"] += 1
            counts["failed"] += 1
            print("failed", f"{type(error).__name__}: {error}"[:200].replace("{", "("), flush=True)
        time.sleep(0.2)
    print(json.dumps(counts), flush=True)
"""

DASK = (
    COMMON
    + """
from distributed import Client, wait

class Count:
    def __init__(self): self.n = 0
    def add(self):
        self.n += 1
        return self.n

def listen(client):
    for line in sys.stdin:
        if line.startswith("retire"):
            client.retire_workers(names=line.split()[1:], close_workers=True, remove=True)
            print("retired", flush=True)
        else:
            stopped.set()

def main():
    client = Client()
    threading.Thread(target=listen, args=(client,), daemon=True).start()
    state = {"actor": client.submit(Count, actor=True).result(timeout=60), "calls": 0}

    def call_actor():
        state["calls"] += 1
        return state["actor"].add().result(timeout=30)

    def burst(number):
        names = [f"{number}-{each}" for each in range(CHAINS)]
        scattered = client.scatter(b"s" * SIZE, hash=False)
        firsts = [client.submit(first, note, name, n, pure=False) for n, name in enumerate(names)]
        seconds = [client.submit(second, note, name, f, pure=False) for name, f in zip(names, firsts)]
        wait(seconds, timeout=60)
        thirds = [client.submit(third, note, name, f, pure=False) for name, f in zip(names, seconds)]
        for each in thirds:
            attempt("failed", lambda: each.result(timeout=60), lambda found: found == SIZE)
        for n, each in enumerate(firsts):
            attempt("lost", lambda: each.result(timeout=60), lambda found: found == bytes([n]) * SIZE)
        attempt("lost", lambda: scattered.result(timeout=60), lambda found: found == b"s" * SIZE)
        before = counts["failed"]
        attempt("failed", call_actor, lambda found: found == state["calls"])
        if counts["failed"] > before:  # the actor is lost
            state.update(actor=client.submit(Count, actor=True, pure=False).result(timeout=60), calls=0)

    repeat(burst)

if __name__ == "__main__":
    main()
"""
)

RAY = (
    COMMON
    + """
import ray
ray.init(log_to_driver=False)
first, second, third = (ray.remote(num_cpus=1)(each) for each in (first, second, third))

@ray.remote(num_cpus=0)
class Count:
    def __init__(self): self.n = 0
    def add(self):
        self.n += 1
        return self.n

def listen():
    for line in sys.stdin:
        stopped.set()

threading.Thread(target=listen, daemon=True).start()
nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as At
def actor():
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    return Count.options(scheduling_strategy=At(nodes[0], soft=True)).remote()
state = {"actor": actor(), "calls": 0}

def call_actor():
    state["calls"] += 1
    return ray.get(state["actor"].add.remote(), timeout=60)

def burst(number):
    names = [f"{number}-{each}" for each in range(CHAINS)]
    firsts = [first.remote(note, name, n) for n, name in enumerate(names)]
    seconds = [second.remote(note, name, f) for name, f in zip(names, firsts)]
    ray.wait(seconds, num_returns=CHAINS, timeout=60, fetch_local=False)
    thirds = [third.remote(note, name, f) for name, f in zip(names, seconds)]
    for each in thirds:
        attempt("failed", lambda: ray.get(each, timeout=60), lambda found: found == SIZE)
    for n, each in enumerate(firsts):
        attempt("lost", lambda: ray.get(each, timeout=60), lambda found: found == bytes([n]) * SIZE)
    before = counts["failed"]
    attempt("failed", call_actor, lambda found: found == state["calls"])
    if counts["failed"] > before:  # the actor is lost
        state.update(actor=actor(), calls=0)
    del firsts, seconds, thirds, each
    time.sleep(2)  # Ray lets only idle workers leave

repeat(burst)
"""
)

MARS = (
    COMMON
    + """
import oars
if os.environ["OARS_MARS_DISTRIBUTION"] == "xorbits":
    from xorbits._mars import remote
else:
    from mars import remote
session = oars.connect()

def listen():
    for line in sys.stdin:
        stopped.set()

threading.Thread(target=listen, daemon=True).start()

def execute(*spawned):
    return [each.execute() for each in spawned]

def burst(number):
    names = [f"{number}-{each}" for each in range(2)]
    made = []
    for n, name in enumerate(names):
        attempt("failed", lambda: made.append(remote.spawn(first, args=(note, name, n)).execute()) or True, bool)
    for n, each in enumerate(made):
        name = names[n]
        later = remote.spawn(second, args=(note, name, each))
        attempt("failed", lambda: remote.spawn(third, args=(note, name, later)).execute().fetch(),
                lambda found: found == SIZE)
    for n, each in enumerate(made):
        attempt("lost", lambda: each.fetch(), lambda found: found == bytes([n]) * SIZE)

repeat(burst)
"""
)

LOADS = {"dask": DASK, "ray": RAY, "mars": MARS, "pymars": MARS}
