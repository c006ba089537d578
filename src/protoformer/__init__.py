"""Motion learning on prototypes."""
