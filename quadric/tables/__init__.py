"""Networks for tables. The public door is `quadric.sklearn`."""
