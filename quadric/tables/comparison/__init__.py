"""Does a quadratic network help on this table? The parts of `quadric.sklearn.compare`."""
