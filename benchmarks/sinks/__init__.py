"""Streaming sinks side by side: their workload, the contenders, and how they take turns."""
