"""From users, Secrets and the changes of mqadmin to the access table of the members. Pure: time is an argument."""
