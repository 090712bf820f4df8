"""A simulated node that goes through the real pipeline."""
