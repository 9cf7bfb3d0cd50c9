"""What everything stands on: errors, logging, settings, small async helpers. Knows nothing of clusters."""
