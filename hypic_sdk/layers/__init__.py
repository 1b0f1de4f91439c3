"""What models are made of.  A layer asks its context about the past; it never sees a cache."""
