"""Checking inputs against a JSON Schema: here, or in a child where it might take long.

What a check costs is only known from above (`core/schema_work.py`), and most inputs above that bound are checked in a
moment all the same. So none is refused for it; but while the library is at work this process does nothing else, and
such an input is checked in a process of its own (`aside.py`), which ends by its limits.
"""
