"""What api does beside answering: streams to its peers, and duties that nobody waits for."""
