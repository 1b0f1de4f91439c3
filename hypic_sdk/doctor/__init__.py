"""What a model folder is and what it will cost here, told before its weights are read."""
