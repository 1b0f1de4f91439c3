"""Text to segments: pieces, tokens, ids and keys.  No torch here."""
