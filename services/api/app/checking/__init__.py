"""Checking inputs against a JSON Schema.

What a check costs cannot be told from a schema and an input: while the library is at work, its process does nothing
else. So this process checks only what is plain (`core/plain_schemas.py`). All other checks, the compiling of schemas
when a definition is applied, and the words for what does not fit are for children (`children.py`), which end by their
limits. Workspaces wait for them in a fair line (`line.py`).
"""
