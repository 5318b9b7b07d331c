"""quire on the network: the OpenAI-compatible server."""
