"""What is published: `python -m distributions.build`."""
