"""The NameServer: brokers register, clients request routes. NameServers share nothing with each other."""
