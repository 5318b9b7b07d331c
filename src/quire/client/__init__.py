"""Talking to an OpenAI-compatible server over HTTP: chats, batches, load. Knows nothing of the engine."""
