"""Connections to PostgreSQL, statements on them, migrations and notifications."""
