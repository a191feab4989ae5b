"""Who calls, how they prove it, and what they may do: principals, TLS, SASL, the authorizer, delegation tokens.

It may import config alone.
"""
