"""Topics and consumer groups as resources: from what is wanted and what brokers have to the next safe steps. Pure."""
