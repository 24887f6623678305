"""Where tables and lines for people go."""

import rich.console


class Console(rich.console.Console):
    """rich's, but for a reader that has gone: that ends every command alike (:mod:`minitrans.cli.main`)."""

    def on_broken_pipe(self) -> None:
        """Hand the error on, where rich would end the process with another status."""
        raise
