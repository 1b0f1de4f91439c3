"""Decay and strength of the gated delta rule, from the logits of a projection."""
