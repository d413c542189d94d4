"""Real processes of a local cluster, faults between and inside them, and a checker that reads the whole history."""
