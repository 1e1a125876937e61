"""The session with coordinators: codec, translation, callbacks."""
