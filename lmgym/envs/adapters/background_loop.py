"""An event loop in a thread of its own, for packages whose calls are asynchronous."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading

_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""By process: a forked process has no copy of the thread."""


def background_loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process, started at the first call."""
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="lmgym-event-loop", daemon=True).start()
            atexit.register(_cancel_all, loop)
        return loop


def abandon(loop: asyncio.AbstractEventLoop) -> None:
    """Leaves a loop that something blocks; the next call of `background_loop` starts another.

    When it is no longer blocked, it has a second to cancel its tasks before it stops.
    """
    with _lock:
        if _loops.get(os.getpid()) is loop:
            del _loops[os.getpid()]
    loop.call_soon_threadsafe(loop.call_later, 1.0, loop.stop)


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    """Cancels what still waits in a loop when the process ends, which asyncio would warn of."""

    async def cancel() -> None:
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    if loop.is_running():
        with contextlib.suppress(Exception):  # a loop that something blocks is left as it is
            asyncio.run_coroutine_threadsafe(cancel(), loop).result(1.0)
