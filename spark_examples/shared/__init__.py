"""What the examples share: a broker, a Spark, the real data, and how a program tells what it does and what it found."""
