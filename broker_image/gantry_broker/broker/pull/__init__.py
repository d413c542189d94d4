"""Pulls: filters, long polls and what each pull is answered."""
