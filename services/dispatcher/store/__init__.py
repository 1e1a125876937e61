"""The queue in PostgreSQL. Statements and database exceptions do not leave this folder."""
