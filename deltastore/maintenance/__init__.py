"""What keeps a store in shape, from the store alone."""
