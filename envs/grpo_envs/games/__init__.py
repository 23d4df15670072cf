"""Games over several turns, one move in each."""
