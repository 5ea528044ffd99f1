"""What the user asked for: one table of a writer's arguments, and one of a reader's options."""
