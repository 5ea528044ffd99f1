"""Streaming sinks side by side: what they are given, who they are, and how they take turns."""
