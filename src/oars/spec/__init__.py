"""What users write and read: the cluster spec and its status. Knows no engine and no place."""
