"""Mathematics: tasks whose answer is a number."""
