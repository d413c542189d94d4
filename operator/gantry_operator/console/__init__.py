"""The console: pages about clusters for a browser, served by `gantry console` and in Kubernetes.

`collector` asks members in the background and keeps a `Snapshot`. Pages show the snapshot, so they never wait for a
broker. `rows`, `health`, `bodies` and `resets` are pure: they compute what pages show. `operations` does what a person
asks for, through the functions of the `gantry` command. `access` decides who may read and write.
"""
