"""The broker's answer to each request code: one module per subject, and the table of all of them."""
