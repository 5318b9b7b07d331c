"""How a linear layer and a table keep their weights: load, apply, search."""
