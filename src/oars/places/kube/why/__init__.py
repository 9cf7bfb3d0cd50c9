"""From pod conditions, events, logs and API errors to causes that a person understands."""
