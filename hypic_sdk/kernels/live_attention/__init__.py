"""Softmax attention of packed runs over slots."""
