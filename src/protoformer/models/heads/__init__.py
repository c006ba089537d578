"""Decoders on the encoder, one per task, and their parts."""
