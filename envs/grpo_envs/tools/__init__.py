"""Tasks that are solved by calling tools."""
