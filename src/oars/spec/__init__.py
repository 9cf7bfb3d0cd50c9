"""What a user writes and reads: the cluster's description and its status. Knows no engine and no place."""
