"""Which of a holder's streams a server has answered."""

from services.chassis.session.holder import SessionHolder


def live_sessions(holder: SessionHolder) -> int:
    return sum(stream.is_live for stream in holder.rules.streams.values())
