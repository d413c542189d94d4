"""Remoting frames over asyncio: the listening and the calling end."""
