"""Tables that live long: the cost of a batch of scattered upserts as its history grows."""
