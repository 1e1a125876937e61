"""The gRPC services of the dispatcher, and the translation of their messages."""
