"""Norms, rotation and placing of what an attention layer projects."""
