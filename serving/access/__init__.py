"""What stands before the body of a request is read: who asks, how often, from which origin, and for how long."""
