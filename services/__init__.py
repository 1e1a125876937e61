"""The four services and what they share.

This runs before gRPC is loaded, which reads its environment then. gRPC 1.79 began to hand every read of a socket to a
pool of threads of its own (its EventEngine); that is a wake-up more for each message, and on an idle system wake-ups
are most of what an execution costs: without it a hop takes a quarter less time, an execution a sixth less CPU. What is
left is the poller that gRPC for Python had for years. Whoever sets the variable himself has his way.
"""

import os

os.environ.setdefault(
    "GRPC_EXPERIMENTS",
    "-event_engine_client,-event_engine_listener,-event_engine_callback_cq,-event_engine_for_all_other_endpoints",
)
