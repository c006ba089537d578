"""Public datasets on disk, read into the sample dataclasses that synthetic scenes produce."""
