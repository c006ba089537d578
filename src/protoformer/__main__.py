"""`python -m protoformer` is the command `protoformer`."""

from protoformer.app.main import main

main()
