"""What an operator sees: the Django admin of the queue."""
