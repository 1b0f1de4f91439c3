"""Matrix product of packed rows with a weight."""
