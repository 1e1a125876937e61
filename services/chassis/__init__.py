"""What any gRPC process stands on; a shop that sells shoes could use each file here unchanged."""
