"""Fuzzing of everything the package reads: damaged files must be read or refused with an `InputError`.

Run `python -m tests.fuzz --help` in the repository root, or `make fuzz`.
"""
