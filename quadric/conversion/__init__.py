"""Turning layers of existing networks into quadratic ones, and back."""
