"""Building blocks of models: plain objects, called with what they read."""
