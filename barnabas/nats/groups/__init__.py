"""Queue groups: each message is given to one member, which sees that it reaches its partition."""
