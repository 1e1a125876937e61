"""The coordinator's tables: the journal and its projections, and what reads them."""
