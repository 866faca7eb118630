"""Transports between server and clients: in process, workers, Ray, sites of a network."""
