"""What brokers, operator, command line and readers agree on: leadership, the bodies of HTTP, the file of a token."""
