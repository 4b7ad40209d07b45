"""A retriever that learns from an agent's rewards while it serves the agent."""
