"""Differential privacy: a budget, what releases cost, noise of integers, and rows whose influence is bounded."""

from elmesh.privacy.budget import Privacy

__all__ = ["Privacy"]
