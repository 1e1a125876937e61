"""The pure rules of api: filters, tiers, the cost of JSON Schemas.

There is no clock, randomness, I/O, logging, async or protobuf here. A refusal is a value.
"""
