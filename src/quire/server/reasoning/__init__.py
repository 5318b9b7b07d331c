"""Models that think aloud first: telling their reasoning from their answer."""
