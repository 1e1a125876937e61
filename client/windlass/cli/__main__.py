"""`python -m windlass.cli`, where no script is installed."""

from windlass.cli import main

main()
