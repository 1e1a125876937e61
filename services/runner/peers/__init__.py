"""The runner's sessions with coordinators, and the translation of their messages into jobs and outcomes."""
