"""Attention over cached keys in their segments' own slots: an experiment, used by no engine."""
