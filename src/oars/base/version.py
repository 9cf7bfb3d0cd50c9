"""The version of Oars."""

VERSION = "0.1.0"
