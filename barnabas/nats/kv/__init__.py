"""Key-value buckets as compacted topics, both ways."""
