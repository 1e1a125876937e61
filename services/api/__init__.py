"""The api service: the public gRPC API, and the catalog of workflows, workspaces and keys."""
