"""Triton and blocked-CPU versions of hot operators, and the choice between them."""
