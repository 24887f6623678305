"""How fast this package trains and translates here, beside others on the same work."""
