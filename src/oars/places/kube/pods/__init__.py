"""Members as pods without a controller, for clients that may only create and delete pods, Services and budgets."""
