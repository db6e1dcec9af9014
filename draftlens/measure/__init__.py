"""What benchmarks and evaluations share."""
