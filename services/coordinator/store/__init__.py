"""The coordinator's SQL: the journal and its projections, and the queries that read them."""
