"""A first job: each process says who it is and what it was given."""

import os
import sys

rank, world, node = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "NODE_RANK"))
print(f"process {rank} of {world} on node {node}, master {os.environ['MASTER_ADDR']}, arguments {sys.argv[1:]}")
