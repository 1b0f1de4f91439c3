"""Linear attention as decay, erase, write: one file a family."""
