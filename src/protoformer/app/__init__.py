"""The command line: thin, with no logic of its own."""
