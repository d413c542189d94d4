"""RocketMQ's protocol without any I/O: frames, headers, bodies, messages, and every code."""
