"""What the coordinator calls: sessions with dispatchers, their mailboxes, definitions and keys from api."""
