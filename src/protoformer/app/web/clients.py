"""Whether somebody still waits for a computation of the page."""

import sys
from collections.abc import Callable
from typing import Any


def abandonment() -> Callable[[], bool]:
    """A function that says whether the client of the current computation cancelled it or went away.

    To be called in the thread in which gradio runs the computation; the function may be called in any. Outside of
    gradio it always says no.
    """
    context = sys.modules.get("gradio.context")
    if context is None:
        return _never
    local: Any = context.LocalContext
    blocks, event_id = local.blocks.get(None), local.event_id.get(None)
    events = {} if blocks is None else blocks._queue.event_ids_to_events
    event = events.get(event_id)
    if event is None:
        return _never

    def is_abandoned() -> bool:
        # A client that disconnects makes its event dead; one that cancels it has it taken from the queue.
        return not event.alive or event_id not in events

    return is_abandoned


def _never() -> bool:
    return False
