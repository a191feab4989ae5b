"""The partitions of this broker: roles, leadership and ISR, waiting produces, directories."""
