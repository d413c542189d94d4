"""The certificate authority of one cluster: what to issue, when to renew, and the certificates themselves.

`schedule` decides (pure), `x509` makes and reads certificates, `renewal` connects the two. The platforms store the
result: as Secrets, or as files.
"""
