"""The plan of `up` has the promised ports, and names peers by files."""

from pathlib import Path

import pytest

from deploy.local.home import Home
from deploy.local.plan import (
    GRPC_PORTS,
    OFFSETS,
    STOP_SECONDS,
    Options,
    ill_formed,
    members,
    port_of,
    postgres_port,
    write_peers,
)
from deploy.local.secret import SETTING
from windlass.cli.stack import REPLICAS_MAX


def test_ports_follow_service_offset_and_replica(tmp_path: Path) -> None:
    options = Options(
        home=tmp_path, port_offset=100, replicas={"api": 2, "dispatcher": 1, "coordinator": 3, "runner": 1}
    )
    planned = {member.name: member.addresses() for member in members(options, Home(tmp_path))}
    assert planned["api-0"] == {"gRPC": "127.0.0.1:7501", "metrics": "127.0.0.1:7701"}
    assert planned["api-1"]["gRPC"] == "127.0.0.1:7511"
    assert planned["coordinator-2"] == {"gRPC": "127.0.0.1:7523", "metrics": "127.0.0.1:7723"}
    assert list(planned) == [
        "api-0", "api-1", "dispatcher-0", "coordinator-0", "coordinator-1", "coordinator-2", "runner-0",
    ]  # fmt: skip


def _ports(offset: int, replicas: int) -> list[int]:
    options = Options(home=Path(), port_offset=offset, replicas=dict.fromkeys(GRPC_PORTS, replicas))
    planned = members(options, Home(Path()))
    return [
        postgres_port(options),
        *(port_of(address) for member in planned for address in member.addresses().values()),
    ]


def test_stacks_whose_offsets_differ_by_300_never_collide() -> None:
    ports = [port for offset in (0, 300, *OFFSETS[:2]) for port in _ports(offset, replicas=10)]
    assert len(set(ports)) == len(ports)


def test_as_many_replicas_as_up_takes_do_not_collide() -> None:
    ports = _ports(0, REPLICAS_MAX)
    assert len(set(ports)) == len(ports)


def test_environment_names_files_and_never_secrets(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.take()
    password = home.password("api")
    for member in members(Options(home=tmp_path), home):
        values = " ".join(member.env.values())
        assert password not in values
        # The modules of users run in the runner.
        assert ("WINDLASS_DATABASE_URL_FILE" in member.env) == (member.service != "runner")
        assert member.runs_modules == (member.service == "runner")
        assert SETTING not in member.env


def test_peers_are_listed_for_those_who_call_them(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.take()
    planned = members(Options(home=tmp_path, replicas={"dispatcher": 2}), home)
    write_peers(home, planned)
    assert home.peers_file("dispatcher").read_text() == "127.0.0.1:7402\n127.0.0.1:7412\n"
    coordinator = next(member for member in planned if member.service == "coordinator")
    assert coordinator.env["WINDLASS_DISPATCHERS"] == f"@{home.peers_file('dispatcher')}"


def test_extra_environment_reaches_one_service_or_one_replica(tmp_path: Path) -> None:
    options = Options(
        home=tmp_path,
        replicas={"coordinator": 2},
        extra_env=["coordinator:A=1", "coordinator-1:WINDLASS_CRASH_AT=append:3"],
    )
    planned = {member.name: member.env for member in members(options, Home(tmp_path))}
    assert planned["coordinator-0"]["A"] == planned["coordinator-1"]["A"] == "1"
    assert "WINDLASS_CRASH_AT" not in planned["coordinator-0"]
    assert planned["coordinator-1"]["WINDLASS_CRASH_AT"] == "append:3"
    assert "A" not in planned["api-0"]


@pytest.mark.parametrize("entry", ["", "api", "api:KEY", "shop:KEY=1", "api:=1"])
def test_ill_formed_extra_environment_is_seen(entry: str) -> None:
    assert ill_formed(entry)


def test_stop_stays_within_the_promise() -> None:
    postgres_seconds = 2.0
    assert sum(STOP_SECONDS.values()) + postgres_seconds < 15


def test_runners_and_they_alone_are_told_which_networks_are_open(tmp_path: Path) -> None:
    def told(options: Options) -> dict[str, str | None]:
        return {each.service: each.env.get("WINDLASS_RUNNER_ALLOW_NET") for each in members(options, Home(tmp_path))}

    closed = dict.fromkeys(GRPC_PORTS)
    assert told(Options(home=tmp_path)) == closed
    options = Options(home=tmp_path, allow_net=["127.0.0.1", "fd12::/64"])
    assert told(options) == closed | {"runner": "127.0.0.1,fd12::/64"}
