"""Which tokens are computed in the next step: plan, commit, and the order of the waiting."""
