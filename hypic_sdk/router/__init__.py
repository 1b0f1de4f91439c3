"""Which worker computes what: plans over several engines.  Hints only; an engine decides."""
