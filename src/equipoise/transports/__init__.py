"""How the server reaches clients: one interface, several roads."""
