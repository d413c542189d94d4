"""Leader decisions of one group: observations in, decisions out, each with its reason. In mode Raft the members elect
their leader themselves: `gantry_broker/replication/raft.py`.

`choose_leader.py` is pure. Time, the registry's content and the members' reports are arguments. The group controllers
in `cluster` call it, in local mode and on Kubernetes alike.
"""
