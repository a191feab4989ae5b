"""What tests of brokers and of programs that use one need."""
