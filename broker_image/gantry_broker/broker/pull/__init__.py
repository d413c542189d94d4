"""Pulls: filters, long polls and the answers."""
