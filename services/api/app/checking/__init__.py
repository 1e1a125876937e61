"""Checks inputs against a JSON Schema.

The cost of a check cannot be known from the schema and the input, and while the library works, its process does nothing
else. So this process only does checks that are plain (`core/plain_schemas.py`). Children (`children.py`) do all other
checks, compile schemas when a definition is applied, and describe misfits; they end by their limits. Workspaces wait
for them in a fair line (`services/chassis/process/fair_line.py`).
"""
