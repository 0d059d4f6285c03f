"""The command line: `quadric` and its commands."""


def main() -> None:
    """Runs the `quadric` command."""
    try:
        from quadric.cli.app import app

        app()
    except KeyboardInterrupt:  # while modules are imported
        raise SystemExit(130) from None  # as shells count
