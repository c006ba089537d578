"""Motion segmentation: masks of what moves on its own, with identities through a clip."""
