"""What a process does when it is asked to end."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """A handler that ends the program as Ctrl-C does, so that nothing partial is left behind.

    Raises
    ------
    KeyboardInterrupt
        Always. The signal is ignored from then on: one request is enough.
    """
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextlib.contextmanager
def handled_by(
    request: Callable[[int, FrameType | None], None] | signal.Handlers,
    signals: tuple[signal.Signals, ...] = SIGNALS,
) -> Iterator[None]:
    """Call ``request`` for each of the signals inside the block; afterwards the old handlers again.

    ``signal.SIG_IGN`` ignores them, as do the processes that are started inside the block.

    Outside the main thread, where Python allows no handlers, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = {number: signal.signal(number, request) for number in signals}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
