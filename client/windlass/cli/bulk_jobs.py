"""Commands for all executions that a filter finds: jobs of the server, which go on without this process."""

import time
import uuid
from typing import Annotated, Any, Final

import typer

from windlass.cli import messages, render
from windlass.cli.arguments import LimitOption, PageOption
from windlass.cli.connection import Api, command
from windlass.cli.executions import COLUMNS
from windlass.cli.forms import OutputForm
from windlass.cli.forms import show as show_in
from windlass.cli.output import say, visible

jobs = typer.Typer(
    help="Look at jobs that give a command to many executions.", no_args_is_help=True, rich_markup_mode=None
)

LOOK_SECONDS: Final = 0.3
INTERRUPTED: Final = 130
JobArgument = Annotated[str, typer.Argument(metavar="JOB_ID")]
WaitOption = Annotated[
    bool, typer.Option("--wait/--no-wait", help="With --filter: wait until all executions have got the command.")
]


# Nothing changes a copy that was imported (docs/replay.md), so that it refuses a command is no failure of the job.
_IMPORTED: Final = "EXECUTION_IMPORTED"


def _refused(job: Any) -> int:
    """How many executions have refused the command, without the imported copies."""
    return sum(each.count for each in job.refused if each.reason != _IMPORTED)


def _copies(job: Any) -> int:
    return sum(each.count for each in job.refused if each.reason == _IMPORTED)


JOB_COLUMNS: render.Columns = {
    "job": "id",
    "action": "action",
    "state": "state",
    "matched": "matched",
    "done": "done",
    "refused": lambda job: str(_refused(job)),
    "failed": "failed",
    "began": "create_time",
    "caller": "caller",
    "filter": "filter",
}


def run(api: Api, request: Any, *, wait: bool, output_form: OutputForm) -> None:
    """Begin the job, and follow it to its end. Exit code 1 unless every execution has got the command. Imported copies
    are left out."""
    if request.dry_run:
        _show_count(api.call(request), output_form=output_form)
        return
    request.request_id = str(uuid.uuid4())
    job = api.call(request).job
    if output_form == "table":
        say(f"job {job.id}")
    if wait:
        job = _followed(api, job, is_quiet=output_form != "table")
    _end(job, output_form)


def _end(job: Any, output_form: OutputForm) -> None:
    show_in(job, output_form, _show)
    is_well = render.cell(job, "state") in ("DONE", "RUNNING") and not _refused(job) and not job.failed
    raise typer.Exit(0 if is_well else 1)


def _followed(api: Api, job: Any, *, is_quiet: bool) -> Any:
    shown = ""
    try:
        while not job.HasField("end_time"):
            if not is_quiet and (line := _progress(job)) != shown:
                shown = line
                say(line)
            time.sleep(LOOK_SECONDS)
            job = api.call(messages.GetBulkJobRequest(job=job.id)).job
    except KeyboardInterrupt:
        say("the job goes on without you", err=True)
        say(f"to come back: {api.typed(f'windlass jobs follow {job.id}')}", err=True)
        say(f"to stop it:   {api.typed(f'windlass jobs stop {job.id}')}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    return job


def left_out(copies: int) -> str:
    """Says how many imported copies did not get a command, and why. Empty if there is none."""
    return f"{copies} imported {'copy' if copies == 1 else 'copies'}, which nothing changes" if copies else ""


def _progress(job: Any) -> str:
    told = job.done + _refused(job) + _copies(job) + job.failed
    return f"{told} of {job.matched}" if job.counted else f"{job.matched} found so far"


def _show_count(answer: Any, *, output_form: OutputForm) -> None:
    if output_form == "name":
        for execution in answer.sample:
            show_in(execution, output_form, _show)
        return
    show_in(answer, output_form, _show_counted)


def _show_counted(answer: Any) -> None:
    match = "execution matches" if answer.matched == 1 and not answer.cut else "executions match"
    say(f"{'more than ' if answer.cut else ''}{answer.matched} {match}; nothing was done")
    if answer.sample:
        render.table(answer.sample, COLUMNS)
    if len(answer.sample) < answer.matched:
        say("and more")
    if any(each.imported_execution_id for each in answer.sample):
        say("imported copies are among them, and are left out: nothing changes a copy")


def _show(job: Any) -> None:
    facts = {
        "job": job.id,
        "action": render.cell(job, "action"),
        "filter": job.filter,
        "reason": job.reason,
        "from node": job.from_node,
        "caller": job.caller,
        "state": render.cell(job, "state"),
        "message": job.message,
        "matched": f"{job.matched}{' so far' if not job.counted else ', and more' if job.cut else ''}",
        "done": str(job.done),
        "refused": ", ".join(f"{each.count} {each.reason}" for each in job.refused if each.reason != _IMPORTED),
        "left out": left_out(_copies(job)),
        "failed": str(job.failed or ""),
        "began": render.date(job.create_time),
        "ended": render.date(job.end_time),
    }
    render.facts(facts, width=8)
    for each in job.samples:
        say(visible(f"  {each.execution_id}: {each.reason}: {each.message}"))


@command(jobs, "list", shows=render.listing("jobs", JOB_COLUMNS))
def list_(api: Api, limit: LimitOption = 20, page_token: PageOption = "") -> Any:
    """List jobs, newest first."""
    return api.call(messages.ListBulkJobsRequest(page_size=limit, page_token=page_token))


@command(jobs, shows=_show)
def show(api: Api, job_id: JobArgument) -> Any:
    """Show a job and how far it has come."""
    return api.call(messages.GetBulkJobRequest(job=job_id)).job


@command(jobs, shows=_show)
def stop(api: Api, job_id: JobArgument) -> Any:
    """Stop a job. What it has done stays."""
    return api.call(messages.StopBulkJobRequest(job=job_id)).job


@command(jobs)
def follow(api: Api, job_id: JobArgument, output_form: OutputForm = "table") -> None:
    """Wait for the end of a job. Exit code 1 unless every execution has got the command, apart from imported copies."""
    job = _followed(api, api.call(messages.GetBulkJobRequest(job=job_id)).job, is_quiet=output_form != "table")
    _end(job, output_form)
