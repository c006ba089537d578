"""Telling that memory ran out: every library has its own exception for it."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether this is what an allocation that failed raises."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text
