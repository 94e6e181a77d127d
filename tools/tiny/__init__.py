"""The tiny pair: a 61-layer target and its EAGLE-3 draft, made from a seed."""
