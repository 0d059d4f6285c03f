"""`python -m quadric`: the command line."""

from quadric.cli import main

main()
