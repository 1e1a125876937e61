"""The three services of this process, and the only code that knows their messages."""
