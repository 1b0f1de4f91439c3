"""Hypic Store: two pools, and the one owner of cache memory."""
