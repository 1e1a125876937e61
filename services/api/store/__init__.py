"""The tables of api: SQL, and rows as records. Database exceptions do not leave this folder, but for those of the
chassis that say "away"."""
