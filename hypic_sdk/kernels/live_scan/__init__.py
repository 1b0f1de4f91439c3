"""The state of live sequences walks runs and gaps."""
