"""Metrics that clients push (KIP-714): which they are asked for, the client instances, and the receiver that keeps the last values
for the metrics listener. The receiver exists where `barnabas.metrics.listener` is set; without it what is pushed is dropped.

It may import coordinator and what that may import; `metrics/` shows what the receiver has.
"""
