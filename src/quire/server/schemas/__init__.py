"""What goes over HTTP: pydantic models for requests, msgspec structs for the answers that must be fast."""
