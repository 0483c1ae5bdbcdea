"""Entry point of a job: evaluates one config on the cluster that it runs in.

    ray job submit --address URL --working-dir . -- python jobs/evaluate.py CONFIG

The working directory may be a clone: then the nodes need raveval's dependencies, not raveval.
Arguments and exit codes are those of `raveval run`; `run.address` of the config does not count.
"""

import sys

from raveval.cli import main

if __name__ == "__main__":
    sys.argv[1:] = ["run", *sys.argv[1:], "--address", "auto"]
    main()
