"""The end of a program: Ctrl-C and SIGTERM ask it to stop, and it ends where it is safe."""

import signal
import threading


def stop_event() -> threading.Event:
    """Set when the program is asked to stop."""
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    return stopping
