"""Import torch without its notice that numpy is missing.

A plain install has no numpy, torch says so in a warning at its first import, and nothing in Quadric
needs it. Only that one message is silenced, and only during this import.
"""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    import torch as torch
