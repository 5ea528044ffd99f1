"""Speed, always as ratios: both sides are timed in turn, in one run, on the same data."""
