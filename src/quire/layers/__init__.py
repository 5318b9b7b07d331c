"""The parts models are made of. Each gets (x, batch)."""
