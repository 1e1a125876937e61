"""Lease sessions over gRPC streams: these classes drive the rules of `services.chassis.lease`, for any hop.

`SessionHolder` keeps one stream to every server. `SessionRegistry` serves the streams of all holders. Both
know a hop only by its `HopCodec` and the callbacks of its owner. Each stream has one reader task and one
writer task. No item has a task of its own.
"""
