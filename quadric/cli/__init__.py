"""The command line: `quadric` and its commands."""


def main() -> None:
    """Runs the `quadric` command."""
    from quadric.cli.app import app

    app()
