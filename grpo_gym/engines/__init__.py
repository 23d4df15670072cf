"""Policies that sample: each takes token ids and gives token ids, log-probs and finish reasons."""
