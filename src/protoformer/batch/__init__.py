"""Processing of many videos on this machine or on a Ray cluster, which continues after an interruption."""
