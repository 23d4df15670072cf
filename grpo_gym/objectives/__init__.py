"""The stages that an agent is composed of: frozen dataclasses that are called."""
