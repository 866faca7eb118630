"""Tables: CSV, NPZ and Parquet files of sites, their columns, and the way to model inputs."""
