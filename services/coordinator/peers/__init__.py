"""The calls that the coordinator makes: sessions with dispatchers, their mailboxes, definitions and keys from api."""
