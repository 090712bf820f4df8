"""What the readings mean now; pure functions."""
