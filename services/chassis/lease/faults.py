"""Finds the contents of a frame that are faults in every state. Such text could not go into a database or a log."""

from services.chassis.lease.frames import HELD_MAX, LABELS_MAX, MODULES_MAX, NAME_MAX, Attach, HolderFrame, StreamFault

TOO_MANY_HELD = StreamFault("HELD_EXCEEDED", f"an instance can hold at most {HELD_MAX} leases")


def fault_in_attach(attach: Attach) -> StreamFault | None:
    if message := _malformed(attach):
        return StreamFault("ATTACH_INVALID", message)
    return TOO_MANY_HELD if len(attach.held) > HELD_MAX else None


def _malformed(attach: Attach) -> str:
    if not attach.instance_id or not 0 <= attach.capacity <= HELD_MAX:
        return f"an attach needs an instance_id, and a capacity of 0 to {HELD_MAX}"
    modules_count = max(len(attach.modules), len(attach.idempotent_modules))
    if len(attach.labels) > LABELS_MAX or modules_count > MODULES_MAX:
        return f"an attach has at most {LABELS_MAX} labels and {MODULES_MAX} modules"
    modules = (*attach.modules, *attach.idempotent_modules)
    texts = (attach.instance_id, attach.holder, attach.version, *modules, *attach.labels)
    if any(len(text) > NAME_MAX or "\0" in text for text in (*texts, *attach.labels.values())):
        return f"names have at most {NAME_MAX} characters and no NUL"
    if any(len(lease_id) > NAME_MAX for lease_id, _ in attach.held):
        return f"the id of a lease has at most {NAME_MAX} characters"
    return ""


def has_long_name(frame: HolderFrame) -> bool:
    for report in frame.reports:
        if len(report.report_id) > NAME_MAX or len(report.lease_id) > NAME_MAX:
            return True
    for refused in frame.refused:
        if len(refused.lease_id) > NAME_MAX or len(refused.reason) > NAME_MAX:
            return True
    beat = frame.beat
    return beat is not None and (
        any(len(lease_id) > NAME_MAX for lease_id, _ in beat.held)
        or any(len(lease_id) > NAME_MAX for lease_id in beat.gone)
    )
