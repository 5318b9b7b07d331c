"""How a linear layer keeps its weights: create, process after loading, apply."""
