"""The pure rules of api: tiers, the cost of JSON Schemas, jobs for many executions, redrives of dead letters, forks.

There is no clock, randomness, I/O, logging, async or protobuf here. A refusal is a value.
"""
