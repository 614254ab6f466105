"""What is remembered of requests, and how their answers are kept."""
