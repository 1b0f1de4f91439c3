"""Outputs and the pair (T, S) of cold segments; the recurrence by steps and in tiles."""
