"""Video stabilization."""
