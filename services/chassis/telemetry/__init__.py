"""What a process says of itself: log lines, metrics, spans, and the pipeline to a collector."""
