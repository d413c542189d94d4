"""The pages of the console: each file has the routes of the page with its name."""
