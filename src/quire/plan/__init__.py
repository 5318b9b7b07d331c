"""What a model needs and what fits, computed before anything is loaded."""
