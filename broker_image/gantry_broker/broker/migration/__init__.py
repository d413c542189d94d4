"""Migration from a running Apache RocketMQ: its log by the HA protocol, and the state beside the log."""
