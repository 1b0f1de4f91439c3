"""Entries from one worker to another: point to point, under an epoch, each wait with a deadline."""
