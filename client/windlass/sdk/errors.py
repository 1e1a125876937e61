"""Errors a module raises to say how its failure is to be treated.

Any other exception counts as TRANSIENT except those that trying again cannot mend (ValueError, TypeError, KeyError,
LookupError and the like), which count as PERMANENT: the runner classifies, the coordinator decides.
"""


class ModuleError(Exception):
    """A failure with a class. `type` is what people filter by; it defaults to the class's own name."""

    class_name = "TRANSIENT"

    def __init__(self, message: str, *, type: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.type = type or self.class_name
        self.retry_after = retry_after


class TransientError(ModuleError):
    """Trying again may help; `retry_after` seconds are waited at least."""


class PermanentError(ModuleError):
    """Trying again cannot help."""

    class_name = "PERMANENT"


class ModuleTimeout(ModuleError):
    """Something that the module waited for took too long."""

    class_name = "TIMEOUT"


class CircuitOpenError(ModuleError):
    """The target is known to be down; it was not called."""

    class_name = "CIRCUIT_OPEN"
