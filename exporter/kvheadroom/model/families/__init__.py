"""How each family of models lays out what its layers keep."""
