"""Background duties, each with a `run_once` that a test can call. Behind every wake-up stands one of them."""
