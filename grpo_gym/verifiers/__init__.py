"""Verifiers: pure functions from a completion and a reference to a `Score`; they never raise, never hang."""
