"""The servicers of api and what translates between the wire and the handlers."""
