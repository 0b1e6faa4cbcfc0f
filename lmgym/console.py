"""The two consoles, results on standard output and everything else on standard error; nothing else prints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

results = Console(highlight=False)
messages = Console(stderr=True, highlight=False)


def progress_bars() -> Progress:
    """Bars with a description, a count, the time so far and the time left; they disappear when they end."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=messages, transient=True)


def format_duration(seconds: float) -> str:
    """A duration as `2h 05m`, `12m 30s` or `45s`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {seconds:02d}s" if minutes else f"{seconds}s"


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silences the log and the progress bars of transformers, and restores its settings afterwards."""
    from transformers import modeling_gguf_pytorch_utils as gguf_reading
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    # The bar over the tensors of a GGUF is tqdm's own, which ignores the settings of transformers.
    own_bar = getattr(gguf_reading, "tqdm", None)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    gguf_reading.tqdm = lambda tensors, desc="": tensors
    try:
        yield
    finally:
        gguf_reading.tqdm = own_bar
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
