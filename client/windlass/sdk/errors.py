"""Errors that a module raises to say how its failure is to be treated.

Exceptions that trying again cannot mend (ValueError, TypeError, LookupError and the like) count as PERMANENT, all
others as TRANSIENT. The runner classifies a failure; the coordinator decides whether to try again.
"""


class ModuleError(Exception):
    """A failure with a class. People filter by `type`, which defaults to the name of the class."""

    class_name = "TRANSIENT"

    def __init__(self, message: str, *, type: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.type = type or self.class_name
        self.retry_after = retry_after


class TransientError(ModuleError):
    """Trying again may help. The next attempt waits at least `retry_after` seconds."""


class PermanentError(ModuleError):
    """Trying again cannot help."""

    class_name = "PERMANENT"


class ModuleTimeout(ModuleError):
    """Something that the module waited for took too long."""

    class_name = "TIMEOUT"


class CircuitOpenError(ModuleError):
    """The target is known to be down; it was not called."""

    class_name = "CIRCUIT_OPEN"
