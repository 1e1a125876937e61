"""Lease sessions over gRPC streams: the drivers of the rules in `services.chassis.lease`, for any hop.

`SessionHolder` keeps one stream to every server; `SessionRegistry` serves the streams of every holder. Both
know a hop only by its `HopCodec` and its owner's callbacks. Per stream there is one reader and one writer
task, and none per item.
"""
