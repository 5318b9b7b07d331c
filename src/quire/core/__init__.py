"""The words every layer shares: requests, sequences, step plans and results, outputs, the KV layout. No torch."""
