"""The rules of api, pure: what a definition may say, what a filter means, what a tier allows.

Laws of this folder. No clock, chance, I/O, log, loop or wire format: `now` and fresh ids arrive in the call. A refusal
is a value. What needs a library (templates, JSON Schema) is a Protocol that the composition root fills.
"""
