"""RMSNorm, plain and gated."""
