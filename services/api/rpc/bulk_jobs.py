"""Bulk jobs at the border: orders from requests, jobs as callers see them, and the command for each execution."""

from __future__ import annotations

import functools
from typing import Final

import orjson

from services.api.app import refusals
from services.api.app.bulk_jobs import BulkDesk
from services.api.app.commands import Commands, NewCommand
from services.api.app.executions import Executions, cancel_id
from services.api.core.bulk_jobs import BulkAction, BulkJob, BulkOrder
from services.api.rpc import translate
from services.api.rpc.filter_text import parse
from services.api.rpc.filters import ExecutionFilter
from services.api.rpc.overrides import judge_retry, node_overrides
from services.api.rpc.pages import Page
from services.api.rpc.structs import holding
from services.chassis.grpc.errors import Refusal
from services.chassis.identity.callers import caller
from windlass.api.v1 import executions_pb2 as pb
from windlass.api.v1 import resources_pb2
from windlass.coordinator.v1.reads_pb2 import Condition
from windlass.definition.json_values import canonical

# A queued execution answers when it begins, which nobody awaits.
_QUEUED_SECONDS: Final = 0.0
_ACTIONS: Final = dict(resources_pb2.BulkJob.Action.items())
_SHARED: Final = ("caller", "matched", "create_time", "stop_time", "end_time")


class BulkServing:
    """The methods of ExecutionService that concern jobs."""

    def __init__(self, desk: BulkDesk) -> None:
        self._desk = desk

    async def begin(self, request: pb.BulkExecutionsRequest) -> pb.BulkExecutionsResponse:
        filter_, order, identity = parse(request.filter), await order_of(request), caller()
        if request.dry_run:
            count = await self._desk.count(identity.workspace, filter_)
            sample = [translate.listed(each) for each in count.sample]
            return pb.BulkExecutionsResponse(matched=count.matched, cut=count.is_cut, sample=sample)
        job, is_existing = await self._desk.begin(identity, order, request.request_id)
        return pb.BulkExecutionsResponse(job=shown(job), existing=is_existing)

    async def get(self, request: pb.GetBulkJobRequest) -> pb.GetBulkJobResponse:
        return pb.GetBulkJobResponse(job=shown(await self._desk.find(caller().workspace, request.job)))

    async def page(self, request: pb.ListBulkJobsRequest) -> pb.ListBulkJobsResponse:
        workspace = caller().workspace
        page = Page(request, "bulk jobs", workspace)
        found = await self._desk.page(workspace, page.after, page.size + 1)
        jobs, token = page.cut(found, lambda job: job.job_id, shown)
        return holding(pb.ListBulkJobsResponse, jobs=jobs, next_page_token=token)

    async def stop(self, request: pb.StopBulkJobRequest) -> pb.StopBulkJobResponse:
        return pb.StopBulkJobResponse(job=shown(await self._desk.stop(caller(), request.job)))


class ExecutionCommands:
    """Gives the commands of jobs to executions (BulkCommands)."""

    def __init__(self, executions: Executions, commands: Commands) -> None:
        self._executions = executions
        self._commands = commands

    def filter_of(self, job: BulkJob) -> ExecutionFilter:
        as_of = Condition(field="create_time", operator=Condition.LESS_EQUAL, value=job.as_of_time.isoformat())
        return ExecutionFilter([*parse(job.order.filter).conditions, as_of])

    async def give(self, job: BulkJob, execution_id: str) -> None:
        match job.order.action:
            case BulkAction.CANCEL:
                await self._cancel(job, execution_id)
            case BulkAction.PAUSE:
                await self._pause(job, execution_id)
            case BulkAction.RESUME:
                message = translate.command(job.caller)
                message.resume.SetInParent()
                await self._commands.give(job.workspace, _command(job, execution_id, "resume", message))
            case BulkAction.RETRY:
                await self._retry(job, execution_id)
            case unknown:
                raise ValueError(f"no job with the action {unknown} is worked on here")

    async def _cancel(self, job: BulkJob, execution_id: str) -> None:
        told = (job.request_id, job.order.reason, job.caller)
        try:
            await self._executions.order_cancel(job.workspace, execution_id, *told)
        except Refusal:
            # It may have been retried since this job cancelled it, and have ended otherwise.
            if not await self._commands.has_answered(execution_id, cancel_id(execution_id, *told[:2])):
                raise

    async def _pause(self, job: BulkJob, execution_id: str) -> None:
        if (await self._executions.find(job.workspace, execution_id)).state == "PAUSED":
            return
        message = translate.command(job.caller)
        message.pause.reason = job.order.reason
        await self._commands.give(job.workspace, _command(job, execution_id, "pause", message))

    async def _retry(self, job: BulkJob, execution_id: str) -> None:
        message, from_node = translate.command(job.caller), job.order.from_node
        overrides = orjson.loads(job.order.input_overrides or b"{}")
        message.retry.from_node = from_node
        message.retry.input_overrides.update({node: orjson.dumps(values) for node, values in overrides.items()})
        judge = functools.partial(judge_retry, from_node=from_node, nodes={from_node, *overrides} - {""})
        await self._commands.reopen(job.workspace, _command(job, execution_id, "retry", message), judge)


async def order_of(request: pb.BulkExecutionsRequest) -> BulkOrder:
    action = BulkAction(resources_pb2.BulkJob.Action.Name(request.action))
    given = await node_overrides(request.input_overrides, "input_overrides")
    overrides = {node: orjson.loads(raw) for node, raw in given.items()}
    if request.reason and action not in (BulkAction.CANCEL, BulkAction.PAUSE):
        raise refusals.invalid_field("reason", "NOT_TAKEN", f"{action} takes no reason")
    for field, value in (("from_node", request.from_node), ("input_overrides", overrides)):
        if value and action is not BulkAction.RETRY:
            raise refusals.invalid_field(field, "NOT_TAKEN", f"{action} takes no {field}")
    laid_over = canonical(overrides) if overrides else b""
    return BulkOrder(action, request.filter, request.reason, request.from_node, laid_over)


def shown(job: BulkJob) -> resources_pb2.BulkJob:
    order, tally, made = job.order, job.tally, resources_pb2.BulkJob
    action = _ACTIONS.get(order.action, made.ACTION_UNSPECIFIED)
    unknown = "" if action else f"its action {order.action} is that of a newer api, which alone works on it"
    return made(
        **{name: getattr(job, name) for name in _SHARED},
        message=job.message or unknown,
        id=job.job_id,
        action=action,
        filter=order.filter,
        reason=order.reason,
        from_node=order.from_node,
        state=made.State.Value(job.state.value),
        counted=job.is_counted,
        cut=job.is_cut,
        done=tally.done,
        refused=[made.RefusalCount(reason=reason, count=count) for reason, count in sorted(tally.refused.items())],
        failed=tally.failed,
        samples=[made.Sample(**each._asdict()) for each in tally.samples],
    )


def _command(job: BulkJob, execution_id: str, kind: str, message: object) -> NewCommand:
    return NewCommand(kind, execution_id, message, job.request_id, queued_seconds=_QUEUED_SECONDS)
