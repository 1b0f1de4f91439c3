"""What a feed-forward block does between its products."""
