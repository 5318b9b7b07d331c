"""From logits to tokens: processors, penalties, samplers, logprobs, counter-based noise."""
