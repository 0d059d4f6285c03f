"""`python -m quadric` runs the command line."""

from quadric.cli import main

if __name__ == "__main__":
    main()
