"""Where results live that are too large to travel."""
