"""Studies: a published table as a file, run through comparisons and judged claim by claim."""
