"""`python -m protoformer`, which is the command `protoformer`."""

from protoformer.cli.main import main

if __name__ == "__main__":
    main()
