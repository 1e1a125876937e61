"""The coordinator service: the journal and the rules by which executions move."""
