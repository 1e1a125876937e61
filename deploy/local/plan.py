"""Plans what `up` runs: which processes, on which ports, with which environment.

Hazard: a secret reaches a child by the path of its file. Nothing here may put one into a value or an argument. The path
of the service secret is not planned: it is that of an open file (secret.py).
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from deploy.local.files import write_whole
from deploy.local.home import Home
from deploy.local.ports import is_free
from deploy.local.provision import OWNERS

LOOPBACK = "127.0.0.1"
POSTGRES_PORT = 7400
GRPC_PORTS = {"api": 7401, "dispatcher": 7402, "coordinator": 7403, "runner": 7404}
METRICS_PORTS = {"api": 7601, "dispatcher": 7602, "coordinator": 7603, "runner": 7604}
REPLICA_STEP = 10
# The ports of a stack with up to ten replicas of each service lie within 300. All offsets stay below the range that the
# kernel hands out to clients (32768 and up).
OFFSETS = range(1_000, 25_000, 300)

# The services that a service calls: the setting with their addresses, and the service behind it.
PEERS: Mapping[str, Mapping[str, str]] = {
    "api": {"WINDLASS_DISPATCHERS": "dispatcher", "WINDLASS_COORDINATORS": "coordinator"},
    "dispatcher": {},
    "coordinator": {"WINDLASS_DISPATCHERS": "dispatcher", "WINDLASS_APIS": "api"},
    "runner": {"WINDLASS_COORDINATORS": "coordinator"},
}

# The order in which services stop, and the time that each may take. With PostgreSQL's 2 s the sum stays under the
# promised 15 s. First no new work comes in, then running work ends, then the services that record it stop.
STOP_SECONDS: Mapping[str, float] = {"api": 2.5, "runner": 4.0, "coordinator": 3.0, "dispatcher": 2.0}
# The part of this time that the drain leaves for closing.
CLOSE_SECONDS = 0.5


@dataclass(frozen=True)
class Options:
    home: Path
    port_offset: int = 0
    replicas: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(GRPC_PORTS, 1))
    modules: Sequence[Path] = ()
    lease_scale: float = 1.0
    database_url: str | None = None
    otlp_endpoint: str | None = None
    # Networks that modules may call although they are not public. Empty: those of our own environment.
    allow_net: Sequence[str] = ()
    restart: bool = True
    # SERVICE:KEY=VALUE or SERVICE-REPLICA:KEY=VALUE, for experiments and tests.
    extra_env: Sequence[str] = ()


@dataclass(frozen=True)
class Member:
    """One process of the stack."""

    service: str
    replica: int
    grpc: str
    metrics: str
    env: Mapping[str, str]

    @property
    def name(self) -> str:
        return f"{self.service}-{self.replica}"

    @property
    def runs_modules(self) -> bool:
        """True: it runs code of users, and is given no secret of the services."""
        return self.service not in OWNERS

    def addresses(self) -> dict[str, str]:
        """The addresses that it listens on, by purpose."""
        return {"gRPC": self.grpc, "metrics": self.metrics}


def postgres_port(options: Options) -> int:
    return POSTGRES_PORT + options.port_offset


def members(options: Options, home: Home) -> list[Member]:
    return [
        _member(options, home, service, replica)
        for service in GRPC_PORTS
        for replica in range(options.replicas.get(service, 1))
    ]


def on_free_ports(options: Options, first: int = 0) -> Options:
    """The same options with an offset at which every port is free. `first` keeps concurrent callers apart."""
    for number in range(len(OFFSETS)):
        shifted = replace(options, port_offset=OFFSETS[(first + number) % len(OFFSETS)])
        wanted = {postgres_port(shifted)}
        for member in members(shifted, Home(options.home)):
            wanted.update(port_of(address) for address in member.addresses().values())
        if all(is_free(LOOPBACK, port) for port in wanted):
            return shifted
    raise OSError("no free port offset")


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def write_peers(home: Home, planned: Sequence[Member]) -> None:
    for service in {peer for peers in PEERS.values() for peer in peers.values()}:
        lines = [f"{member.grpc}\n" for member in planned if member.service == service]
        write_whole(home.peers_file(service), "".join(lines))


def _member(options: Options, home: Home, service: str, replica: int) -> Member:
    shift = options.port_offset + REPLICA_STEP * replica
    grpc = f"{LOOPBACK}:{GRPC_PORTS[service] + shift}"
    metrics = f"{LOOPBACK}:{METRICS_PORTS[service] + shift}"
    env = {
        "WINDLASS_GRPC_ADDRESS": grpc,
        "WINDLASS_METRICS_ADDRESS": metrics,
        "WINDLASS_REPLICA": str(replica),
        "WINDLASS_LEASE_SCALE": repr(options.lease_scale),
        "WINDLASS_DRAIN_SECONDS": str(STOP_SECONDS[service] - CLOSE_SECONDS),
        # No process of ours forks. If one did, gRPC's fork handlers would only warn, or hang.
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        **{setting: f"@{home.peers_file(peer)}" for setting, peer in PEERS[service].items()},
    }
    if options.otlp_endpoint:
        env["WINDLASS_OTLP_ENDPOINT"] = options.otlp_endpoint
    if service != "api":
        env["WINDLASS_SYSTEM_KEY_HASH_FILE"] = str(home.system_key_hash_file)
    if service in OWNERS:
        # Not for the runner, in whose process the modules of users run.
        env["WINDLASS_DATABASE_URL_FILE"] = str(home.url_file(service))
    if service in ("coordinator", "runner"):
        env["WINDLASS_OUTPUT_STORE"] = str(home.outputs)
    if service == "runner":
        env["WINDLASS_RUNNER_KEY_FILE"] = str(home.key_file("runner"))
        env["WINDLASS_MODULES"] = os.pathsep.join(str(path.absolute()) for path in options.modules)
        if options.allow_net:
            env["WINDLASS_RUNNER_ALLOW_NET"] = ",".join(options.allow_net)
    env |= _extra(options.extra_env, service, replica)
    return Member(service, replica, grpc, metrics, env)


def ill_formed(entry: str) -> bool:
    """True when an `extra_env` entry is not SERVICE:KEY=VALUE."""
    target, colon, assignment = entry.partition(":")
    name, equals, _ = assignment.partition("=")
    return not (colon and equals and name and target.partition("-")[0] in GRPC_PORTS)


def _extra(entries: Sequence[str], service: str, replica: int) -> dict[str, str]:
    found = {}
    for entry in entries:
        target, _, assignment = entry.partition(":")
        name, _, value = assignment.partition("=")
        if target in (service, f"{service}-{replica}"):
            found[name] = value
    return found
