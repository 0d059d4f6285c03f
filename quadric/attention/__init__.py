"""Multi-head attention with quadratic projections."""

from quadric.attention.layer import QuadraticMultiheadAttention as QuadraticMultiheadAttention
