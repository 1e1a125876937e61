"""Keeps the outputs that are too large for a report."""
