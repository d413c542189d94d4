"""The gRPC endpoint for RocketMQ 5 clients: `apache.rocketmq.v2.MessagingService`, forwarded by remoting."""
