"""The broker's answer to each request code: one module for each subject, and the table of all handlers."""
