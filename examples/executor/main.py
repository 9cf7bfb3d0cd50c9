"""concurrent.futures on a cluster: the same program on any engine. Run it with:

oars run examples/executor/main.py --engine dask --workers 2      # or ray, or mars
"""

from concurrent.futures import as_completed

import oars


def primes_below(limit: int) -> int:
    return sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(2, limit))


if __name__ == "__main__":
    with oars.executor() as executor:
        futures = {executor.submit(primes_below, limit): limit for limit in (1_000, 10_000, 50_000)}
        for future in as_completed(futures):
            print(f"{future.result()} primes below {futures[future]}")
        print(f"{sum(executor.map(primes_below, range(100, 600, 100)))} in all")
