"""Serving and calling: server, guard, validation, errors, health, reflection, channels."""
