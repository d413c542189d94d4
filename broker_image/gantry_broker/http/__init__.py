"""The HTTP interface of a broker: health, role, status, metrics, raw log segments."""
