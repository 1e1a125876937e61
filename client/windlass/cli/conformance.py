"""`windlass conformance`: drives a runner in any language through the protocol, and names the rules that it breaks."""

import json
from pathlib import Path
from typing import Annotated

import typer

KEPT, BROKEN = 0, 1
COORDINATORS = 2


def conformance(
    runner: Annotated[
        str,
        typer.Option(
            "--runner",
            metavar="COMMAND",
            help="The command that starts the runner; the kit's addresses and a key are in its environment.",
        ),
    ] = "",
    listen: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Where the runner finds the kit; give two. By default any free ports."),
    ] = None,
    quick: Annotated[
        str, typer.Option(metavar="MODULE[=CONFIG]", help="A module of the runner that returns its inputs at once.")
    ] = "transform@1",
    slow: Annotated[
        str, typer.Option(metavar="MODULE[=CONFIG]", help="A module of the runner that takes more than a minute.")
    ] = 'delay@1={"duration": "10m"}',
    deferring: Annotated[
        str,
        typer.Option(metavar="MODULE[=CONFIG]", help="A module of the runner that leaves its work to somebody else."),
    ] = "",
    calling: Annotated[
        str, typer.Option(metavar="MODULE[=CONFIG]", help="A module of the runner that names the target that it calls.")
    ] = "",
    drain_seconds: Annotated[
        float, typer.Option(help="The time in which the runner has to end after SIGTERM.", min=0.1)
    ] = 30.0,
    story: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Tell only this story; repeat it for more.")
    ] = None,
    log: Annotated[Path, typer.Option(help="Where the output of the runner goes.")] = Path("/dev/null"),
) -> None:
    """Check that a runner keeps the contract. Exit code 1 if it breaks a rule.

    The kit plays two coordinators. It starts the runner with WINDLASS_COORDINATORS and WINDLASS_RUNNER_KEY_FILE, or
    waits for one that you start. docs/runners.md explains the rules.

    \b
    Examples:
      windlass conformance --runner './my-runner' --quick echo@1 --slow 'wait@1={"seconds": 90}'
    """

    import asyncio

    from windlass.cli.output import say
    from windlass.conformance.kit import KitPlan, examine
    from windlass.conformance.stories import LAST_STORY, STORIES

    addresses = listen or ["127.0.0.1:0"] * COORDINATORS
    if len(addresses) != COORDINATORS:
        raise typer.BadParameter("give two addresses", param_hint="--listen")
    if not runner and not listen:
        raise typer.BadParameter("give the command of the runner, or two addresses to --listen", param_hint="--runner")
    names = {each.__name__ for each in (*STORIES, LAST_STORY)}
    if unknown := [each for each in story or () if each not in names]:
        message = f"there is no story {unknown[0]}; there are {', '.join(sorted(names))}"
        raise typer.BadParameter(message, param_hint="--story")
    works = _work(quick), _work(slow)
    optional = [_work(given) if given else None for given in (deferring, calling)]
    plan = KitPlan(runner, addresses, *works, drain_seconds, log, story or (), *optional)
    is_kept = asyncio.run(examine(plan, say))
    raise typer.Exit(KEPT if is_kept else BROKEN)


def _work(given: str) -> "KitWork":  # type: ignore[name-defined] # noqa: F821
    from windlass.conformance.scene import KitWork

    module, _, config = given.partition("=")
    try:
        json.loads(config or "{}")
    except ValueError:
        raise typer.BadParameter(f"the config of {module} is not JSON") from None
    return KitWork(module, (config or "{}").encode())
