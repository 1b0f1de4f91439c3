"""Causal depthwise conv from a carried tail."""
