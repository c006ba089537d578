"""The registry of kinds; a new kind is one more entry in one of the lists that are joined here."""

from tests.fuzz.images import ARRAYS, IMAGES
from tests.fuzz.kind import Kind
from tests.fuzz.texts import TEXTS
from tests.fuzz.videos import VIDEOS

KINDS: dict[str, Kind] = {kind.name: kind for kind in (*IMAGES, *ARRAYS, *VIDEOS, *TEXTS)}
"""All kinds by name."""
