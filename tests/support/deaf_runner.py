"""Our runner, except that it does not read one field of its grants: `python -m tests.support.deaf_runner FIELD [0|1]`.

It finds the field unset, or with this value.
"""

import os
import sys

from services.chassis.process.config import read_or_exit
from services.runner.config import RunnerSettings
from services.runner.core.job import Job
from services.runner.peers import coordinators
from services.runner.peers.translate import job_of
from services.runner.wiring import main
from windlass.coordinator.v1 import sessions_pb2 as pb


def make_deaf(field: str, value: str = "") -> None:
    def of_what_is_heard(grant: pb.RunGrant, now_ns: int) -> Job:
        heard = pb.RunGrant()
        heard.CopyFrom(grant)
        heard.ClearField(field)  # type: ignore[arg-type] # any name of a field
        if value:
            setattr(heard, field, int(value))
        return job_of(heard, now_ns)

    coordinators.job_of = of_what_is_heard  # type: ignore[attr-defined] # what its sessions call


if __name__ == "__main__":
    make_deaf(*sys.argv[1:])
    any_port = dict.fromkeys(("WINDLASS_GRPC_ADDRESS", "WINDLASS_METRICS_ADDRESS"), "127.0.0.1:0")
    os.environ.update(any_port)
    sys.exit(main(read_or_exit(RunnerSettings)))
