"""The parts that any gRPC process needs. A shop that sells shoes could use each file here unchanged."""
