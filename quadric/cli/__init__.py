"""The command line: `quadric` and its commands."""

from quadric.cli.app import main as main
