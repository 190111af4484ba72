"""The data that is hashed and signed: trees, chunks, records, rounding logs, jobs and heads."""
