"""The steps of a migration from Apache RocketMQ. `steps` is pure, `edge` acts."""
