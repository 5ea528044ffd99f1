"""What this machine has: a Java that Spark can run on, and Pythons for its workers."""
