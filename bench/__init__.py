"""Speed against what the engines' users have today, side by side in one run."""
