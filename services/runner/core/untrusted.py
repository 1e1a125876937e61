"""What a module says, within bounds.

A module is anybody's code: it may name a number where text belongs, or a text that no encoding takes. What it says is
bent into range here and never refused, so that the outcome of a run can always be reported. No function here raises.
"""

from __future__ import annotations

MESSAGE_CHARACTERS_MAX = 4_096
NAME_CHARACTERS_MAX = 256
# As many as a coordinator takes.
BRANCH_CHARACTERS_MAX = 255
# Longer than any retry policy waits, and far within what a Duration holds.
RETRY_AFTER_SECONDS_MAX = 366 * 86_400.0
COST_TOKENS_MAX = 1_000_000_000_000


def clamp_text(value: object, characters_max: int = MESSAGE_CHARACTERS_MAX) -> str:
    """Bounded, without the NUL that PostgreSQL refuses and the lone surrogates that no encoding takes."""
    try:
        text = str(value)[:characters_max]
    except Exception:  # noqa: BLE001 - the text of somebody's own class
        text = f"a {type(value).__name__} that cannot be written"
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def clamp_number(value: object) -> float:
    """0 for what is no number at all, or none that is counted in."""
    try:
        number = float(value) if isinstance(value, int | float | str) else 0.0
    except (ValueError, OverflowError):
        return 0.0
    return number if number - number == 0.0 else 0.0


def clamp_seconds(value: object) -> float | None:
    """A wait that was asked for; None when none was."""
    seconds = clamp_number(value)
    return min(seconds, RETRY_AFTER_SECONDS_MAX) if seconds > 0.0 else None


def clamp_cost(value: object) -> int:
    return int(min(max(0.0, clamp_number(value)), COST_TOKENS_MAX))


def clamp_fraction(value: object) -> float:
    return min(max(0.0, clamp_number(value)), 1.0)
