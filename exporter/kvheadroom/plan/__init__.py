"""Offline questions: does it fit, how many requests, why did it not start."""
