"""Load on a server: what is asked, when, and what the answers' times amount to."""
