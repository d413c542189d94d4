"""HTTP/2 for the gRPC endpoint: header compression, one connection without I/O, and its asyncio edge."""
