"""The telemetry of a process: log lines, metrics, spans, and the pipeline to a collector."""
