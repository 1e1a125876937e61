"""The pure rules of api: tiers, and the cost of JSON Schemas.

There is no clock, randomness, I/O, logging, async or protobuf here. A refusal is a value.
"""
