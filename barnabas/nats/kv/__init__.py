"""Key-value buckets as compacted topics, in both directions.

Owns what a bucket's messages mean, the order between a bucket and its topic, and tombstones for a recreated bucket. Imports
jetstream for the way in, egress for the way out, and what they import.
"""
