"""Repeats an example's work until standard input ends, so that a cluster can be scaled under load."""

import runpy
import select
import sys

if __name__ == "__main__":
    work = runpy.run_path(sys.argv[1])["work"]
    while True:
        print(work(), flush=True)
        if select.select([sys.stdin], [], [], 0.2)[0]:  # a pause, as programs have between their calls
            break
