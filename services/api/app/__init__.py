"""The use cases of api. They need stores and peers only through the Protocols of `ports.py`."""
