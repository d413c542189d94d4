"""Topics as Iceberg tables: executors write Parquet, the driver commits with the offsets that the files cover."""
