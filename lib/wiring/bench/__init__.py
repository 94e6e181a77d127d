"""The benchmark and the speculation cost model."""
