"""An inner product of two large tensors of ones, with Mars. Run it with:

oars run examples/mars-inner/main.py --engine mars --workers 3

This uses Mars from xorbits. With pymars (--set mars.distribution=pymars) write `import mars.tensor as mt`.
"""

import xorbits._mars.tensor as mt

import oars


def work() -> str:
    oars.connect()  # finds the cluster of `oars run`
    a = mt.ones((2000, 2000), chunk_size=1000)
    product = mt.inner(a, a).execute().fetch()
    return f"{product.shape[0]}x{product.shape[1]} of {product.max():.0f}"


if __name__ == "__main__":
    print(work())
