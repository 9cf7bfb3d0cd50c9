"""The mean of a large array of ones, with Dask. Run it with:

oars run examples/dask-array-mean/main.py --engine dask --workers 3
"""

import dask.array as da
from distributed import Client


def work() -> str:
    with Client():  # finds the cluster of `oars run`
        array = da.ones((1000, 1000, 1000), chunks=(250, 500, 500))
        return f"mean {array.mean().compute()}"


if __name__ == "__main__":
    print(work())
