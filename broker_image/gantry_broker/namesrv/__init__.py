"""The NameServer: where brokers register and clients ask for routes. NameServers share nothing with each other."""
