"""Policies over sets of clients as arms (GDA), and what they share."""
