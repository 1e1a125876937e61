"""The api service: the public face, the catalog of workflows, workspaces and keys."""
