"""What a process does when it is asked to end."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@contextlib.contextmanager
def handled_by(
    request: Callable[[int, FrameType | None], None], signals: tuple[signal.Signals, ...] = SIGNALS
) -> Iterator[None]:
    """Call ``request`` for each of the signals inside the block; afterwards the old handlers again.

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
