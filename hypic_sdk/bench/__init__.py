"""Measurements.  A number without its circumstances is not reported."""
