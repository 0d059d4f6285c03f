"""The command line: `quadric` and its commands."""


def main() -> None:
    """Runs the `quadric` command."""
    try:
        from quadric.cli.app import app

        app()
    except SystemExit:
        raise
    except BaseException as error:
        if not _from_ctrl_c(error):
            raise
        raise SystemExit(130) from None  # as shells count


def _from_ctrl_c(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error: in the middle of an import Python gives it other names."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
