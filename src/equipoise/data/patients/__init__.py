"""Patients' records: events over time, medical codes, histories as sequences."""
