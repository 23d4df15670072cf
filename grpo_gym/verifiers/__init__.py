"""Verifiers: functions from a completion and a reference to a `Score` that never raise, never hang."""
