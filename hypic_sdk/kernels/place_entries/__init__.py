"""Copy cached keys and values to other slots, rotating the keys."""
