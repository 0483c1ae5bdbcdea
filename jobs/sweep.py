"""Entry point of a job: sweeps over checkpoints on the cluster that it runs in.

    ray job submit --address URL --working-dir . -- python jobs/sweep.py CONFIG

Arguments and exit codes are those of `raveval sweep`. The sweep and its runs use the cluster that
Ray names to its jobs; `run.address` of the base has to be unset.
"""

import sys

from raveval.cli import main

if __name__ == "__main__":
    sys.argv[1:] = ["sweep", *sys.argv[1:]]
    main()
