"""Projections: readers of events that take in each one exactly once, in an order that no late commit can break."""
