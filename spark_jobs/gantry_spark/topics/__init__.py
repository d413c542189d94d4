"""Topics in Spark: the data source and sink `rocketmq`, for Gantry and for Apache RocketMQ 4.9 and 5.x."""
