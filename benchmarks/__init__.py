"""What proves the speed. Each script prints its table and appends rows to `benchmarks/results/`."""
