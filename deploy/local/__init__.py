"""The whole stack on one machine, with an embedded PostgreSQL."""
