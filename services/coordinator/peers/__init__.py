"""What the coordinator calls on others: sessions with dispatchers, their mailboxes, definitions and keys of api."""
