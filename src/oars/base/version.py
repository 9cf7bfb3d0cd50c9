"""Which Oars this is. Here, so that every layer may know it."""

VERSION = "0.1.0"
