"""The `windlass` command.

Hazard: `windlass --help` is promised under 250 ms, so nothing but typer is imported before a command is
known; gRPC, rich and the services are imported inside the commands.
"""

import sys


def main() -> None:
    from windlass.cli.app import app, run

    sys.exit(run(app))
