"""Scene depth."""
