"""`python -m hypic_sdk.cli` is the command `hypic`."""

from hypic_sdk.cli.app import main

main()
