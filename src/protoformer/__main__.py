"""The command `protoformer`, which is `python -m protoformer`, too."""

import os
import signal


def main() -> None:
    """Run the command line. Ctrl-C while it is being imported, which takes seconds, ends it without a word."""
    usual = signal.getsignal(signal.SIGINT) == signal.default_int_handler
    if usual:  # no exception, which some packages take for their own failure
        signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    from protoformer.app.main import main as run

    if usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
