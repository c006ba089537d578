"""What prototypes stand for: maps, groups, moving parts, an interactive page."""
